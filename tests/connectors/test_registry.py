"""Which connector serves which kind of source."""

from importlib.metadata import EntryPoint

import pytest

from connectors import registry
from connectors.errors import Misconfigured
from connectors.simplified import SimplifiedConnector


def test_a_built_in_kind_is_found_by_its_name() -> None:
    """B10: the kind that a source stores leads to its connector."""
    assert registry.connector_class("simplified") is SimplifiedConnector


def test_an_unknown_kind_is_refused_and_the_known_ones_are_named() -> None:
    """B4, B5: a wrong setting is told apart, and how to right it."""
    with pytest.raises(Misconfigured, match=r"'nonsense'; known kinds: .*simplified"):
        registry.connector_class("nonsense")


def test_another_package_can_add_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """B10: an engine of one's own needs no change here."""
    added = EntryPoint("added", "connectors.simplified:SimplifiedConnector", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(
        registry, "entry_points", lambda group, name="added": [added] if name == "added" else []
    )
    assert "added" in registry.connector_kinds()
    assert registry.connector_class.__wrapped__("added") is SimplifiedConnector
