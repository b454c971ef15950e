"""What depends on the database is shown on PostgreSQL too: by tests that bear the mark `databases`."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.processes import ROOT
from tests.syntax_trees import nodes_of, tree_of

ROOMS = ("audit", "catalogue", "config", "executions", "mcp_bridge", "orchestration")
METHODS = {
    "select_for_update": "locks rows",
    "raw": "has SQL of its own",
    "extra": "has SQL of its own",
    "cursor": "has SQL of its own",
    "iterator": "reads through a cursor of the server",
    "get_or_create": "may lose a race for a new row",
    "update_or_create": "may lose a race for a new row",
    "on_commit": "waits for a commit",
}
ATTRIBUTES = {"vendor": "asks which database it is", "features": "asks what the database can"}
OPTIONS = {
    "ignore_conflicts": "may lose a race for a new row",
    "update_conflicts": "may lose a race for a new row",
    "durable": "depends on where transactions begin",
    "savepoint": "depends on where transactions begin",
}
ERRORS = {"DatabaseError", "IntegrityError", "InterfaceError", "OperationalError"}
SQL_CLASSES = {"Func", "RawSQL"}
"""Those that are written with parts of SQL, as a base class or called."""
ANY_CASE = {"icontains", "iexact", "istartswith", "iendswith", "iregex"}


def test_every_module_that_depends_on_the_database_is_shown_on_postgresql() -> None:
    shown = {module for marks in _marks_of_tests().values() for module in marks}
    missing = [
        f"{module}, line {line}: {what}"
        for module, path in _product().items()
        if module not in shown
        for line, what in _dependences(tree_of(path))
    ]
    assert not missing, "\n".join(["Name these in the mark `databases` of a test that shows it:", *missing])


def test_every_mark_names_modules_that_exist() -> None:
    product = _product()
    wrong = {
        str(path): sorted(modules - product.keys())
        for path, modules in _marks_of_tests().items()
        if not modules or modules - product.keys()
    }
    assert not wrong, f"These marks name no module, or one that the product does not have: {wrong}"


def test_every_test_module_that_asks_which_database_it_has_runs_on_both() -> None:
    marked = _marks_of_tests()
    unmarked = [
        f"{path}, line {line}: {what}"
        for path in _test_modules_with("connection")
        if path not in marked
        for line, what in _uses_of_connection(tree_of(ROOT / path))
    ]
    assert not unmarked, "\n".join(["Only with a mark `databases` do these run on PostgreSQL:", *unmarked])


def _product() -> dict[str, Path]:
    """The file of each module, by its name."""
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files
        if "migrations" not in path.parts
    }


def _test_modules() -> list[Path]:
    """Relative to the project. Whole products bring a database of their own."""
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path.relative_to(ROOT) for path in modules if "e2e" not in path.parts]


def _test_modules_with(word: str) -> list[Path]:
    """Only these are worth parsing."""
    return [path for path in _test_modules() if word in (ROOT / path).read_text(encoding="utf-8")]


@cache
def _marks_of_tests() -> dict[Path, set[str]]:
    """What the marks `databases` of each test module name, for those modules that have any."""
    marks: dict[Path, set[str]] = {}
    for path in _test_modules_with("databases"):
        for node in nodes_of(tree_of(ROOT / path)):
            match node:
                case ast.Attribute(attr="databases"):
                    marks.setdefault(path, set())
                case ast.Call(func=ast.Attribute(attr="databases"), args=names):
                    marks.setdefault(path, set()).update(ast.literal_eval(name) for name in names)
    return marks


def _dependences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The lines that depend on the database, and how."""
    nodes = nodes_of(tree)
    unused = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Call) and _name_of(node.func) == "update" and id(node) not in unused:
            yield node.lineno, "`update` is asked who won a race"
        if isinstance(node, ast.expr | ast.ExceptHandler | ast.ClassDef) and (how := _by_its_syntax(node)):
            yield node.lineno, how
        if isinstance(node, ast.keyword | ast.Constant | ast.Name) and (how := _by_its_words(node)):
            yield node.lineno, how


def _by_its_syntax(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Attribute(attr=name)) if name in METHODS:
            return f"`{name}` {METHODS[name]}"
        case ast.Attribute(attr=name) if name in ATTRIBUTES and _is_connection(node.value):
            return f"`connection.{name}` {ATTRIBUTES[name]}"
        case ast.ExceptHandler(type=ast.expr() as caught) if names := _names(caught) & ERRORS:
            return f"catches {', '.join(sorted(names))}"
        case ast.ClassDef(bases=[*named]) | ast.Call(func=named) if names := _classes_of_sql(named):
            return f"`{names.pop()}` has SQL of its own"
    return ""


def _by_its_words(node: ast.keyword | ast.Constant | ast.Name) -> str:
    match node:
        case ast.keyword(arg=str(name)) if name in OPTIONS:
            return f"`{name}` {OPTIONS[name]}"
        case ast.keyword(arg=str(name)) | ast.Constant(value=str(name)) if _is_of_any_case(name):
            return f"`{name}` compares letters of any case"
        case ast.Name(id="search_fields", ctx=ast.Store()):
            return "`search_fields` are compared in any case of letters"
    return ""


def _name_of(node: ast.expr) -> str:
    """Its last part, of `models.Func` as of `Func`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names(caught: ast.expr) -> set[str]:
    """Those of the errors that an `except` names, one or several."""
    return {_name_of(node) for node in ast.walk(caught) if isinstance(node, ast.expr)}


def _classes_of_sql(named: ast.expr | list[ast.expr]) -> set[str]:
    every = named if isinstance(named, list) else [named]
    return {_name_of(name) for name in every} & SQL_CLASSES


def _is_of_any_case(lookup: str) -> bool:
    return lookup.rpartition("__")[2] in ANY_CASE


def _is_connection(node: ast.expr) -> bool:
    return _name_of(node) == "connection"


def _uses_of_connection(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where a test module asks its connection itself, but for leaving out what is of SQLite alone."""
    nodes = nodes_of(tree)
    skips = [node for node in nodes if isinstance(node, ast.Call) and _name_of(node.func) == "skipif"]
    of_sqlite_alone = {
        id(part)
        for skip in skips
        if ast.unparse(skip.args[0]) == "connection.vendor != 'sqlite'"
        for part in ast.walk(skip)
    }
    for node in nodes:
        match node:
            case ast.Attribute(attr="vendor" | "cursor" as name) if _is_connection(node.value):
                if id(node) not in of_sqlite_alone:
                    yield node.lineno, f"connection.{name}"
