"""Which tests can notice a change to a line."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache, cached_property
from itertools import zip_longest
from pathlib import Path

from coverage import CoverageData

from .operators import Mutant


class Contexts:
    """Which tests execute which lines, from a run with `--cov-context=test`."""

    def __init__(self, file: Path, tree: Path, paths: Iterable[str]) -> None:
        self.tree, self.paths, self.coverage = tree, sorted(set(paths)), CoverageData(str(file))
        self.coverage.read()
        self.measured = sorted(self.coverage.measured_files(), key=len)

    @cache  # noqa: B019
    def of(self, path: str) -> dict[int, set[str]]:
        """Tests by line; a line executed outside any test is there with an empty set."""
        file = next((file for file in self.measured if file.endswith(f"/{path}")), "")
        found = self.coverage.contexts_by_lineno(file) if file else {}
        return {line: {name.rsplit("|", 1)[0] for name in names if name} for line, names in found.items()}

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that may notice it, the likeliest first. Empty if no test executes the line."""
        path, file = mutant.path, self.tree / mutant.path
        lines = range(mutant.line, mutant.line + len(mutant.before))
        statement = statement_at(file, mutant.line)
        if inner_lines(file).issuperset(lines):
            if tests := self.executing(path, lines) or self.executing(path, head_of(statement)):
                return self.in_order(tests)
            if self.of(path).keys().isdisjoint(lines):
                return []
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            # The default of an argument.
            return self.in_order(self.executing(path, range(statement.lineno, end_of(statement) + 1)))
        # Executed by the first import of the module, so any test that uses the module may notice.
        using = [path, *importers(self.tree, path)]
        if constant := name_of(statement):
            using_it = [(user, lines_naming(constant, self.tree / user)) for user in using]
            if all(lines <= inner_lines(self.tree / user) for user, lines in using_it):
                return self.in_order(set().union(*(self.executing(*user) for user in using_it)))
        tiers = [self.executing(user, inner_lines(self.tree / user)) for user in using]
        others = set().union(*tiers[1:]) - tiers[0]
        return [*self.in_order(tiers[0]), *self.in_order(others)]

    def in_order(self, tests: set[str]) -> list[str]:
        """Each module's most specific test, then each module's second, and so on."""
        by_module = defaultdict[str, list[str]](list)
        for test in sorted(tests, key=lambda test: (self.costs[test], test)):
            by_module[test.split("::")[0]].append(test)
        return [test for turn in zip_longest(*by_module.values()) for test in turn if test is not None]

    def executing(self, path: str, lines: Iterable[int]) -> set[str]:
        tests = self.of(path)
        return set().union(*(tests.get(line, ()) for line in lines))

    @cached_property
    def costs(self) -> Counter[str]:
        """How many of the mutated modules' lines each test executes: fewer lines mean a more specific
        test."""
        return Counter(test for path in self.paths for tests in self.of(path).values() for test in tests)


@cache
def inner_lines(path: Path) -> frozenset[int]:
    """The lines in functions; all others are executed at import."""
    functions = (
        node for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(line for node in functions for line in range(node.body[0].lineno, end_of(node) + 1))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def statement_at(path: Path, line: int) -> ast.stmt:
    """The innermost node around the line."""
    statements = (node for node in ast.walk(parse(path)) if isinstance(node, ast.stmt))
    around = (node for node in statements if node.lineno <= line <= end_of(node))
    return min(around, key=lambda node: end_of(node) - node.lineno)


def head_of(node: ast.stmt) -> range:
    """The lines of the node; for a node with a body, the lines before the body."""
    body = getattr(node, "body", None)
    return range(node.lineno, body[0].lineno if body else end_of(node) + 1)


def name_of(node: ast.stmt) -> str | None:
    """The name of a module's constant."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) and node.col_offset == 0 else None


def lines_naming(name: str, path: Path) -> set[int]:
    """Where the module uses the name, except imports and its assignment."""
    return {
        node.lineno
        for node in ast.walk(parse(path))
        if (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.Attribute) and node.attr == name)
    }


def end_of(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


@cache
def product_sources(tree: Path) -> dict[str, str]:
    """By path: of all packages but the tests."""
    modules = (path for package in tree.glob("*/__init__.py") for path in package.parent.rglob("*.py"))
    sources = {str(path.relative_to(tree)): path.read_text(encoding="utf-8") for path in modules}
    return {path: source for path, source in sources.items() if not path.startswith("tests/")}


def importers(tree: Path, path: str) -> list[str]:
    """The product's modules that import this one, or the package that re-exports its names."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package = f"{path.rpartition('/')[0]}/__init__.py"
    sources = product_sources(tree)
    names = [module]
    if module in sources.get(package, ""):
        names.append(package.removesuffix("/__init__.py").replace("/", "."))
    line = re.compile(rf"^\s*(from|import) ({'|'.join(map(re.escape, names))})\b(?!\.)", re.MULTILINE)
    return sorted(file for file, source in sources.items() if file != path and line.search(source))
