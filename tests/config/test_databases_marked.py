"""What depends on the database is shown on PostgreSQL too: by tests that bear the mark `databases`."""

import re

from tests.processes import ROOT

DEPENDS = re.compile(
    r"\.(?:select_for_update|raw|extra|cursor|iterator|get_or_create|update_or_create|on_commit)\("
    r"|connection\.(?:vendor|features)\b|(?:ignore_conflicts|update_conflicts|durable|savepoint)="
    r"|except\b.*\b(?:Database|Integrity|Interface|Operational)Error|\b(?:Func|RawSQL)\b[(,)]"
    r"|__(?:icontains|iexact|istartswith|iendswith|iregex)\b|^ *search_fields\b"
    r"|(?:=|\bif|\breturn|\bnot) .*\.update\("
)
ASKS = re.compile(r"(?<=[ (])(?<!skipif\()connection\.(?:vendor|cursor)\b")
MARKED = re.compile(r"mark\.databases\(([^)]*)\)")
TESTS = {
    path: path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if "e2e" not in path.parts
}


def test_every_module_that_depends_on_the_database_is_shown_on_postgresql():
    shown = {
        name
        for text in TESTS.values()
        for names in MARKED.findall(text)
        for name in re.findall(r"[\w.]+", names)
    }
    missing = []
    for room in (
        "access",
        "audit",
        "catalogue",
        "config",
        "executions",
        "identity",
        "mcp_bridge",
        "orchestration",
    ):
        for path in sorted((ROOT / room).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if "migrations" not in path.parts and module not in shown:
                for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                    missing += [f"{module}, line {number}: {line}"] if DEPENDS.search(line) else []
    assert not missing, "\n".join(["Name these in the mark `databases` of a test that shows it:", *missing])
    gone = [name for name in shown if not list(ROOT.glob(name.replace(".", "/") + "*"))]
    assert not gone, f"Marks name modules that are not there: {gone}"


def test_every_test_module_that_asks_which_database_it_has_runs_on_both():
    unmarked = [
        str(path.relative_to(ROOT))
        for path, text in TESTS.items()
        if ASKS.search(text) and "mark.databases" not in text
    ]
    assert not unmarked, f"Only with a mark `databases` do these run on PostgreSQL: {unmarked}"
