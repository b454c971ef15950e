"""Which connector serves which kind of source."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from connectors import registry
from connectors.errors import Misconfigured
from connectors.registry import BUILT_IN, forget_connectors
from connectors.simplified import SimplifiedConnector
from tests.admin.ledger import LedgerConnector
from tests.packages import declare_package


def test_a_built_in_kind_is_found_by_its_name():
    """B10: the kind that a source stores leads to its connector."""
    assert registry.connector_class("simplified") is SimplifiedConnector


def test_an_unknown_kind_is_refused_and_the_known_ones_are_named():
    """B4, B5: a wrong setting is told apart, and how to right it."""
    with pytest.raises(Misconfigured, match=r"'nonsense'; known kinds: .*simplified"):
        registry.connector_class("nonsense")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages can be declared in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    forget_connectors()


GOOD = "tests.admin.ledger:LedgerConnector"


def test_another_package_can_add_a_kind(site):
    """B10: an engine of one's own needs no change here."""
    declare_package(site, "ledger-engine", ledger=GOOD)
    assert "ledger" in registry.connector_kinds()
    assert registry.connector_class("ledger") is LedgerConnector
    assert registry.usable_connectors()["ledger"] is LedgerConnector
    assert registry.connector_problems() == []


WRONG = {
    "raising": ("raise RuntimeError('no licence')", "importing it failed with RuntimeError: no licence"),
    "no_python": ("def", "importing it failed with SyntaxError"),
    "elsewhere": ("Another = 1", "importing it failed with AttributeError"),
    "no_class": ("Connector = 5", "5 is not a class"),
    "no_config": ("class Connector: pass", "has no Config that is a pydantic model"),
    "another_kind": (
        "from tests.admin.ledger import LedgerConnector as Connector",
        "has the kind 'ledger'",
    ),
    "half_a_class": (
        "from pydantic import BaseModel\n"
        "class Connector:\n"
        "    kind, label, Config, capabilities = 'half_a_class', 'Half', BaseModel, None\n"
        "    async def check(self): ...\n"
        "    def poll(self, run): ...\n",
        "lacks async start(), async poll(), async cancel(), async aclose(), discover",
    ),
    "old_start": (
        "from tests.admin.ledger import LedgerConnector\n"
        "class Connector(LedgerConnector):\n"
        "    kind = 'old_start'\n"
        "    async def start(self, workflow, arguments, *, key): ...\n",
        "start() does not take report",
    ),
    "leaving": ("raise SystemExit('no licence')", "importing it failed with SystemExit: no licence"),
    "no_generator": (
        "from tests.admin.ledger import LedgerConnector\n"
        "class Connector(LedgerConnector):\n"
        "    kind = 'no_generator'\n"
        "    async def discover(self): return []\n",
        "discover() is not an async generator",
    ),
    "no_capabilities": (
        "from tests.admin.ledger import LedgerConnector\n"
        "class Connector(LedgerConnector):\n"
        "    kind, capabilities = 'no_capabilities', {'can_cancel': True}\n",
        "capabilities are a dict",
    ),
    "no_schema": (
        "from pydantic import BaseModel, ConfigDict\n"
        "from tests.admin.ledger import LedgerConnector\n"
        "class Config(BaseModel):\n"
        "    model_config = ConfigDict(arbitrary_types_allowed=True)\n"
        "    clock: Exception | None = None\n"
        "class Connector(LedgerConnector):\n    kind, Config = 'no_schema', Config\n",
        "Config has no JSON Schema or default values: PydanticInvalidForJsonSchema",
    ),
    "no_default": (
        "import os\n"
        "from pydantic import BaseModel, Field\n"
        "from tests.admin.ledger import LedgerConnector\n"
        "class Config(BaseModel):\n"
        "    site: str = Field(default_factory=lambda: os.environ['NO_SUCH_SITE'])\n"
        "class Connector(LedgerConnector):\n    kind, Config = 'no_default', Config\n",
        "Config has no JSON Schema or default values: KeyError: 'NO_SUCH_SITE'",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_connector_that_cannot_be_used_is_told_with_its_package(site, kind, caplog_of_ours):
    """B5, B6: in words, wherever somebody asks for it, and in the log once."""
    code, why = WRONG[kind]
    (site / f"{kind}_engine.py").write_text(code)
    declare_package(site, "third-party", **{kind: f"{kind}_engine:Connector"})
    for _ in range(2):
        with pytest.raises(Misconfigured) as refused:
            registry.connector_class(kind)
    (problem,) = registry.connector_problems()
    assert problem == refused.value.message
    assert f"the kind {kind} from third-party 1.0 ({kind}_engine:Connector) cannot be used" in problem
    assert why in problem
    assert kind not in registry.usable_connectors()
    assert caplog_of_ours == [problem]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("OSError(24, 'Too many open files')", "OSError: [Errno 24] Too many open files"),
        ("OSError(23, 'Too many open files in system')", "OSError: [Errno 23] Too many open files in system"),
        ("MemoryError('no memory')", "MemoryError: no memory"),
        ("ImportError('libengine.so: cannot open shared object file')", "libengine.so: cannot open"),
        ('RuntimeError("can\'t start new thread")', "can't start new thread"),
    ],
)
def test_a_connector_whose_import_failed_for_a_while_can_be_used_afterwards(site, error, why, caplog_of_ours):
    """O6: it could not be used until the process was restarted."""
    fails = site / "fails"
    fails.touch()
    code = f"import pathlib\nif pathlib.Path({str(fails)!r}).exists():\n    raise {error}\n"
    kind = f"ledger_{abs(hash(error))}"
    (site / f"{kind}.py").write_text(
        f"import pathlib\n{code}from tests.admin.ledger import LedgerConnector\n"
    )
    declare_package(site, "third-party", ledger=f"{kind}:LedgerConnector")
    for _ in range(2):
        with pytest.raises(Misconfigured, match=re.escape(why)):
            registry.connector_class("ledger")
    fails.unlink()
    assert registry.connector_class("ledger") is LedgerConnector
    assert len(caplog_of_ours) == 1


@pytest.fixture
def caplog_of_ours() -> Iterator[list[str]]:
    """The errors that are logged."""
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(line.rstrip("\n")), level="ERROR", format="{message}")
    yield lines
    logger.remove(sink)


def test_no_package_takes_the_place_of_a_built_in_kind(site):
    """B8: it would get the secrets of all its sources."""
    declare_package(site, "impostor", simplified=GOOD)
    assert registry.connector_class("simplified") is SimplifiedConnector
    (problem,) = registry.connector_problems()
    assert problem.startswith("impostor 1.0 (tests.admin.ledger:LedgerConnector) provides a connector")
    assert "the built-in connector is used" in problem


def test_of_two_packages_with_one_kind_neither_is_used(site):
    """B8: which one it would be should not be left to the order on a path."""
    declare_package(site, "one", ledger=GOOD)
    declare_package(site, "other", ledger="tests.admin.other:LedgerConnector")
    with pytest.raises(Misconfigured, match=r"one 1\.0 .* and other 1\.0 .* Uninstall all but one"):
        registry.connector_class("ledger")
    assert "ledger" in registry.connector_kinds()


def test_every_registered_kind_is_held_to_the_contract():
    """B10: a connector whose engine is not held to the contract does not get in; test_<kind>_<variant> may be
    another way of one that is."""
    modules = {
        path.stem.removeprefix("test_") for path in (Path(__file__).parent / "contracts").glob("test_*.py")
    }
    assert modules >= BUILT_IN.keys()
    assert [
        module for module in modules if not f"{module}_".startswith(tuple(f"{k}_" for k in BUILT_IN))
    ] == []
