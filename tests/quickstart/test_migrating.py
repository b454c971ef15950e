"""The database that a start finds."""

import pytest
from django.core.management import CommandError
from django.db import connection

from catalogue import database
from config.management.commands import quickstart

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.databases("catalogue.database", "config.management.commands.quickstart"),
]


def test_a_database_that_is_up_to_date_is_not_talked_of(capsys: pytest.CaptureFixture[str]) -> None:
    """A1.2"""
    quickstart.migrate()
    assert capsys.readouterr().out == ""


def test_a_database_that_cannot_be_reached_ends_the_start_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A1.2, E8"""
    unreachable = connection.copy()
    unreachable.settings_dict |= {"HOST": "127.0.0.1", "PORT": "9", "NAME": "/missing/database"}
    unreachable.settings_dict["OPTIONS"].pop("pool", None)
    monkeypatch.setattr(database, "connection", unreachable)
    with pytest.raises(CommandError, match="The database cannot be used: "):
        quickstart.migrate()
