"""Counts modules, lines and functions: `make figures`, `make figures ARGS="--walks --against HEAD~10"`.

The figures are those of the rooms without their migrations.
"""

import argparse
import ast
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "telemetry",
    "connectors",
    "audit",
    "access",
    "catalogue",
    "executions",
    "identity",
    "orchestration",
    "mcp_bridge",
    "config",
)
SMALL = 5
"""Lines of a function."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    name: str
    folder: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))


def read_modules(root: Path) -> list[Module]:
    modules = []
    for file in sorted(file for room in ROOMS for file in (root / room).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if "migrations" not in parts:
            name = ".".join(parts).removesuffix(".__init__")
            modules.append(Module(name, "/".join(parts[:-1]), file.read_text(encoding="utf-8")))
    return modules


# Lines


def code_lines(module: Module) -> int:
    """All except blank lines, comments, imports, docstrings and strings that document the name above."""
    kept: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in NO_CODE:
            kept.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.stmt) and _is_no_code(node):
            kept.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(kept)


NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def _is_no_code(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    return isinstance(node, ast.Import | ast.ImportFrom)


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


# Imports


def imports_of(modules: list[Module]) -> dict[str, set[str]]:
    """The modules that each of them imports, also inside functions and only for types."""
    known = {module.name for module in modules}
    return {module.name: set(_imported(module, known)) - {module.name} for module in modules}


def _imported(module: Module, known: set[str]) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module in known | set(ROOMS):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def lonely(modules: list[Module], imports: dict[str, set[str]]) -> list[str]:
    """Modules with exactly one importer, which sits in the same folder."""
    importers: dict[str, list[str]] = defaultdict(list)
    for name, imported in imports.items():
        for other in imported:
            importers[other].append(name)
    folders = {module.name: module.folder for module in modules}
    return sorted(
        name
        for name, found in importers.items()
        if len(found) == 1 and folders[found[0]] == folders[name] and name.count(".")
    )


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module."""
    reached = {name: _reached_from(name, imports) for name in imports}
    components = {
        tuple(sorted(other for other in reached[name] if name in reached[other])) for name in imports
    }
    return sorted(list(component) for component in components if len(component) > 1)


def _reached_from(name: str, imports: dict[str, set[str]]) -> set[str]:
    reached, left = {name}, [name]
    while left:
        new = imports[left.pop()] - reached
        reached |= new
        left += new
    return reached


# Functions


def used_once(modules: list[Module]) -> list[tuple[str, int]]:
    """Functions with a unique name that is read at one place, with their lines."""
    uses: Counter[str] = Counter()
    defined: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
            elif isinstance(node, Function) and not node.name.startswith("__"):
                defined[node.name].append((f"{module.name}.{node.name}", length(node)))
    return sorted(places[0] for name, places in defined.items() if len(places) == 1 and uses[name] == 1)


def own_names(modules: list[Module]) -> int:
    names = Counter(
        function.name
        for module in modules
        for function in module.functions()
        if not function.name.startswith("__")
    )
    return sum(count == 1 for count in names.values())


# Written by hand

HTML = {"format_html", "format_html_join", "mark_safe"}


def serializers_by_hand(modules: list[Module]) -> list[str]:
    """Serializers that list their fields, rather than taking those of a model."""
    bases: dict[str, list[str]] = {}
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                names = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
                bases.setdefault(node.name, names)

    def ancestors(name: str) -> set[str]:
        return {name}.union(*(ancestors(base) for base in bases.get(name, []) if base != name))

    found = {name: ancestors(name) for name in bases}
    return sorted(name for name, its in found.items() if "Serializer" in its and "ModelSerializer" not in its)


def builders_of_html(modules: list[Module]) -> list[str]:
    """Functions of the admin that make markup in Python, rather than in a template."""
    return [
        f"{module.name}.{function.name}"
        for module in modules
        if "admin" in module.name.split(".")
        for function in module.functions()
        if any(isinstance(node, ast.Name) and node.id in HTML for node in ast.walk(function))
    ]


def test_lines(root: Path) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in (root / "tests").rglob("*.py"))


def walks(root: Path) -> dict[str, str]:
    """Those of walks.py, through the doors of that tree."""
    program = [sys.executable, str(ROOT / "dev" / "scripts" / "walks.py")]
    printed = subprocess.run(program, cwd=root, stdout=subprocess.PIPE, check=True).stdout
    return {
        f"{walk}: functions / files / returns": " / ".join(map(str, counted.values()))
        for walk, counted in json.loads(printed).items()
    }


def figures(root: Path) -> dict[str, str]:
    modules = read_modules(root)
    imports = imports_of(modules)
    lines = sum(module.lines for module in modules)
    lengths = sorted(length(function) for module in modules for function in module.functions())
    once = used_once(modules)
    return {
        "product modules": f"{len(modules):,}",
        "product lines": f"{lines:,}",
        "lines of tests": f"{test_lines(root):,}",
        "share of code lines": f"{sum(map(code_lines, modules)) / lines:.1%}",
        "modules with one importer, next door": f"{len(lonely(modules, imports)):,}",
        "functions with a name of their own": f"{own_names(modules):,}",
        "of these used once": f"{len(once):,}",
        f"of these with at most {SMALL} lines": f"{sum(lines <= SMALL for _, lines in once):,}",
        "serializers by hand": f"{len(serializers_by_hand(modules)):,}",
        "functions of the admin that build HTML": f"{len(builders_of_html(modules)):,}",
        "circles of imports": f"{len(circles(imports)):,}",
        "function lines, median / p90 / max": f"{statistics.median(lengths):g} / "
        f"{lengths[len(lengths) * 9 // 10]} / {lengths[-1]}",
    }


# Reports


@contextmanager
def unpacked(revision: str) -> Iterator[Path]:
    archive = subprocess.run(
        ["git", "archive", "--format=tar", revision],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def details(root: Path) -> Iterator[str]:
    modules = read_modules(root)
    imports = imports_of(modules)
    yield "\nCircles:"
    yield from (f"  {' '.join(circle)}" for circle in circles(imports))
    yield "\nSerializers by hand:"
    yield from (f"  {name}" for name in serializers_by_hand(modules))
    yield "\nFunctions of the admin that build HTML:"
    yield from (f"  {name}" for name in builders_of_html(modules))
    yield "\nModules with one importer, next door:"
    yield from (f"  {name}" for name in lonely(modules, imports))
    yield f"\nFunctions of at most {SMALL} lines that are used once:"
    yield from (f"  {name} ({lines})" for name, lines in used_once(modules) if lines <= SMALL)


# The map


MAP = ROOT / "docs" / "architecture.md"
BEGINNING, END = "<!-- Made by `make generate`. -->\n", "<!-- End of the map. -->"


def draw_map(root: Path) -> str:
    """The imports among the rooms, from the top down, without those that another path implies."""
    below: dict[str, set[str]] = {room: set() for room in ROOMS}
    for name, imported in imports_of(read_modules(root)).items():
        room = name.partition(".")[0]
        below[room] |= {other.partition(".")[0] for other in imported} - {room}
    lines = ["```text"]
    for room in reversed(ROOMS):
        implied = {far for near in below[room] for far in _reached_from(near, below) - {near}}
        if direct := sorted(below[room] - implied):
            lines.append(f"{room:<13} imports {', '.join(direct)}")
    return "\n".join([*lines, "```", ""])


def write_map(*, only_compare: bool) -> None:
    text = MAP.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGINNING)
    _, _, after = rest.partition(END)
    drawn = f"{before}{BEGINNING}{draw_map(ROOT)}{END}{after}"
    if only_compare and drawn != text:
        sys.exit(f"The map in docs/{MAP.name} is not what the imports are: run `make generate`.")
    MAP.write_text(drawn, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", metavar="REVISION", help="show the figures of this revision beside them")
    parser.add_argument("--details", action="store_true", help="list what was counted")
    parser.add_argument("--walks", action="store_true", help="count the functions on four walks, too")
    parser.add_argument("--map", choices=("write", "compare"), help="draw the rooms, or check their picture")
    options = parser.parse_args()
    if options.map:
        write_map(only_compare=options.map == "compare")
        return
    count = (lambda root: figures(root) | walks(root)) if options.walks else figures
    columns = [count(ROOT)]
    if options.against:
        with unpacked(options.against) as root:
            columns.insert(0, count(root))
        print(f"{'':60}{options.against[:12]:>16}{'now':>16}")
    for name in columns[0]:
        print(f"{name:60}" + "".join(f"{column[name]:>16}" for column in columns))
    for line in details(ROOT) if options.details else ():
        print(line)


if __name__ == "__main__":
    main()
