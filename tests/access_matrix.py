"""Who may do what: a row for each endpoint, a column for each kind of caller.

`tests/access_matrix.csv` has what every door answered. A test for each door calls each cell and compares;
with ACCESS_MATRIX=write it writes the rows of its door instead. `docs/permissions.md` shows these rows.
"""

import csv
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from django.contrib import admin
from django.contrib.auth.models import User

import config.urls  # noqa: F401 - it registers the pages of the admin
from access.callers import Scope
from access.models import Role
from identity.tokens import create_token
from tests.processes import ROOT

TABLE = Path(__file__).with_suffix(".csv")
DOCUMENT = ROOT / "docs" / "permissions.md"
PLAIN = "user"  # An account that is not staff and has no role
ROLES = [str(role.label) for role in Role.Name]
PEOPLE = ["anonymous", PLAIN, *ROLES]
TOKENS = [scope.value for scope in Scope]
COLUMNS = [*PEOPLE, *TOKENS]
NO, YES, OWN = "", "yes", "own"  # `own`: what the caller started itself
Rows = dict[tuple[str, str], dict[str, str]]  # By endpoint and verb
DOORS = ["REST", "admin", "MCP", "monitoring", "command"]
BEGIN, END = "<!-- The tables: made from tests/access_matrix.csv. -->", "<!-- End of the tables. -->"
UNSHOWN = {"/", "/favicon.ico", "/api/nowhere"}
FOR_EVERY_ROLE = {"changelist", "change", "history"}
"""The pages of each model that every role may open: the document says so once."""
OTHER_PAGES = {
    ("index", "open"): "overview",
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
        for door in DOORS:
            for (endpoint, verb), cells in sorted(tables.get(door, {}).items()):
                writer.writerow([door, endpoint, verb, *(cells[column] for column in COLUMNS)])


def document_with_tables(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = read_table()
    shown = [
        _endpoints("REST API", tables["REST"]),
        _endpoints("MCP", tables["MCP"]),
        _endpoints("Probes and metrics", tables["monitoring"]),
        _pages(tables["admin"]),
    ]
    return before + "\n\n".join([BEGIN, *shown, END]) + after


def _endpoints(title: str, rows: Rows) -> str:
    """One line for the endpoints that the same callers may call."""
    lines: dict[tuple[str, str], dict[str, list[str]]] = {}
    for (endpoint, verb), cells in sorted(rows.items()):
        if endpoint in UNSHOWN or all(cells[column] == NO for column in COLUMNS):
            continue
        verbs = lines.setdefault((_people(cells), _scopes(cells)), {}).setdefault(endpoint, [])
        verbs += [verb] if verb.isupper() else []
    found = [
        [who, scopes, "<br>".join(f"`{' '.join([*verbs, name])}`" for name, verbs in endpoints.items())]
        for (who, scopes), endpoints in sorted(lines.items())
    ]
    return _table(title, ["who", "scopes", "endpoints"], found)


def _people(cells: Mapping[str, str]) -> str:
    assert cells["Owner"] != NO
    if cells["anonymous"] != NO:
        return "anyone"
    roles = [role for role in ROLES if cells[role] != NO]
    if len(roles) == len(ROLES):
        return {YES: "any user", OWN: "any user (own)", NO: "any role"}[cells[PLAIN]]
    others = [role for role in roles if role != "Owner"] or ["Owner"]
    return ", ".join([*(["plain account"] if cells[PLAIN] != NO else []), *others])


def _scopes(cells: Mapping[str, str]) -> str:
    """The scopes of which one suffices; `catalogue:admin` is named where no other does."""
    allowed = [scope for scope in TOKENS if cells[scope] != NO]
    if len(allowed) == len(TOKENS) and OWN not in cells.values():
        return "any" if cells["anonymous"] == NO else ""
    assert not allowed or Scope.ADMIN in allowed
    names = [scope for scope in allowed if scope != Scope.ADMIN] or allowed
    return ", ".join(f"`{scope}`{' (own)' if cells[scope] == OWN else ''}" for scope in names) or "none"


def _pages(rows: Rows) -> str:
    """One line for each model: what each role may do beside opening its list, its pages and their history."""
    lines: dict[str, dict[str, list[str]]] = {}
    for (page, verb), cells in sorted(rows.items()):
        allowed = {role for role in ROLES if cells[role] == YES}
        if not allowed:
            continue
        title, name = _model_and_name(page, verb)
        if verb == "open" and name in FOR_EVERY_ROLE:
            assert allowed == set(ROLES), page
            continue
        columns = ["any role"] if allowed == set(ROLES) else sorted(allowed - {"Owner"}) or ["Owner"]
        for column in columns:
            names = lines.setdefault(title, {}).setdefault(column, [])
            if name not in names:
                names.append(name)
    columns = ["any role", "Curator", "Operator", "Owner"]
    found = [[title, *(", ".join(its.get(column, [])) for column in columns)] for title, its in lines.items()]
    return _table("Admin", ["page", *columns[:-1], "Owner alone"], sorted(found))


def _model_and_name(page: str, verb: str) -> tuple[str, str]:
    """`("Sources", "add")` of `catalogue_source_add`."""
    for model in admin.site._registry:
        prefix = f"{model._meta.app_label}_{model._meta.model_name}_"
        if page.startswith(prefix):
            action = verb.removeprefix("action: ")
            name = action if action != verb else page.removeprefix(prefix)
            title = str(model._meta.verbose_name_plural).capitalize()
            return title, name.replace("_selected", "").removesuffix("_now").replace("_", " ")
    name = OTHER_PAGES.get((page, verb)) or OTHER_PAGES.get((page, "open")) or page
    return "Other pages", name.removeprefix("executions_").replace("_", " ")


def _table(title: str, heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join([f"## {title}", "", *(f"| {' | '.join(cells)} |" for cells in lines)])
