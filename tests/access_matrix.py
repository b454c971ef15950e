"""Who may do what: a row for each endpoint, a column for each kind of caller.

`tests/access_matrix.csv` has what every door answered. A test for each door calls each cell and compares;
with ACCESS_MATRIX=write it writes the rows of its door instead. `docs/access.md` shows the same table.
"""

import csv
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from django.contrib.auth.models import User

from catalogue.access import Scope
from catalogue.models import Role
from mcp_bridge.tokens import create_token
from tests.processes import ROOT

TABLE = Path(__file__).with_suffix(".csv")
DOCUMENT = ROOT / "docs" / "access.md"
PLAIN = "user"  # An account that is not staff and has no role
ROLES = [role.label for role in Role.Name]
PEOPLE = ["anonymous", PLAIN, *ROLES]
TOKENS = [scope.value for scope in Scope]
COLUMNS = [*PEOPLE, *TOKENS]
NO, YES, OWN = "", "yes", "own"  # `own`: what the caller started itself
Rows = dict[tuple[str, str], dict[str, str]]  # By endpoint and verb
TITLES = {
    "REST": "REST API",
    "admin": "Admin",
    "MCP": "MCP",
    "monitoring": "Probes and metrics",
    "command": "Commands",
}


def make_people() -> dict[str, User]:
    """By column: one of each role, members of staff, and a plain account."""
    people = {PLAIN: User.objects.create(username=PLAIN)}
    for role in Role.objects.select_related("group"):
        people[str(role)] = user = User.objects.create(username=role.name, is_staff=True)
        user.groups.add(role.group)
    return people


def make_tokens() -> dict[str, str]:
    """The texts of tokens without an owner, by column."""
    return {scope: create_token(name=f"of {scope}", scopes=[scope])[1] for scope in TOKENS}


def check(door: str, observed: Rows) -> None:
    if is_to_write():
        rows = read_table()
        rows[door] = observed
        write_table(rows)
    kept = read_table().get(door, {})
    unmatched = sorted(kept.keys() ^ observed.keys())
    assert not unmatched, f"rows without an endpoint, or endpoints without a row: {unmatched}"
    differing = {
        endpoint: {who: (kept[endpoint][who], now[who]) for who in COLUMNS if kept[endpoint][who] != now[who]}
        for endpoint, now in observed.items()
    }
    assert not {endpoint: cells for endpoint, cells in differing.items() if cells}, (
        "run with ACCESS_MATRIX=write"
    )


def is_to_write() -> bool:
    return os.environ.get("ACCESS_MATRIX") == "write"


def observe(
    endpoints: Iterable[tuple[str, str]], callers: Iterable[str], call: Callable[[str, str, str], str]
) -> Rows:
    """`call` gets endpoint, verb and caller."""
    who = list(callers)
    return {
        (endpoint, verb): dict.fromkeys(COLUMNS, "-") | {one: call(endpoint, verb, one) for one in who}
        for endpoint, verb in endpoints
    }


def read_table() -> dict[str, Rows]:
    tables: dict[str, Rows] = {}
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            cells = {column: row[column] for column in COLUMNS}
            tables.setdefault(row["door"], {})[row["endpoint"], row["verb"]] = cells
    return tables


def write_table(tables: Mapping[str, Rows]) -> None:
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["door", "endpoint", "verb", *COLUMNS])
        for door in TITLES:
            for (endpoint, verb), cells in sorted(tables.get(door, {}).items()):
                writer.writerow([door, endpoint, verb, *(cells[column] for column in COLUMNS)])


BEGIN, END = "<!-- The table: made from tests/access_matrix.csv. -->", "<!-- End of the table. -->"


def as_markdown(tables: Mapping[str, Rows]) -> str:
    parts = [BEGIN]
    for door, title in TITLES.items():
        rows = tables.get(door, {})
        used = [column for column in COLUMNS if any(cells[column] != "-" for cells in rows.values())]
        heads = ["", *(f"`{column}`" if column in TOKENS else column for column in used)]
        parts += [f"\n### {title}\n", _line(heads), _line(["---"] * len(heads))]
        parts += [
            _line([f"{verb} `{endpoint}`".strip(), *(cells[column] for column in used)])
            for (endpoint, verb), cells in sorted(rows.items())
            if door == "command" or any(cells[column] != NO for column in used)
        ]
    return "\n".join([*parts, "", END])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def document_with_table(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + as_markdown(read_table()) + after
