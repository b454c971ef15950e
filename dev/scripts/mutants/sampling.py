"""Choosing mutants, and finding them in another state of the code."""

import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from .operators import Mutant, is_a_change, mutants_of

PARTS = (
    "executions/models",
    "executions/runner",
    "catalogue/exposure",
    "catalogue/naming",
    "catalogue/reconciliation",
    "mcp_bridge/results",
    "connectors/simplified",
)
"""Packages and modules, without `.py`."""


def sample(tree: Path, parts: Iterable[str], *, size: int, seed: int) -> list[Mutant]:
    """The same sample for the same code and seed."""
    sources = {
        str(path.relative_to(tree)): path.read_bytes() for part in parts for path in modules_of(tree, part)
    }
    mutants = [mutant for path in sorted(sources) for mutant in mutants_of(path, sources[path])]
    random.Random(seed).shuffle(mutants)  # noqa: S311
    chosen = (mutant for mutant in mutants if is_a_change(mutant, sources[mutant.path].decode()))
    return sorted(islice(chosen, size), key=lambda mutant: (mutant.path, mutant.line))


def modules_of(tree: Path, part: str) -> list[Path]:
    module = tree / f"{part}.py"
    found = [module] if module.exists() else sorted((tree / part).rglob("*.py"))
    if not found:
        sys.exit(f"{tree} does not contain {part}; --parts names the packages and modules to change.")
    return found


def place(mutant: Mutant, tree: Path) -> Mutant | None:
    """The mutant where the tree has its lines: nearest to where they were, or else in the only place."""
    here = tree / mutant.path
    if here.exists() and (lines := lines_where(mutant, here)):
        return replace(mutant, line=min(lines, key=lambda line: abs(line - mutant.line)))
    room = mutant.path.split("/")[0]
    found = [(path, line) for path in (tree / room).rglob("*.py") for line in lines_where(mutant, path)]
    if len(found) != 1:
        return None
    path, line = found[0]
    return replace(mutant, path=str(path.relative_to(tree)), line=line)


def lines_where(mutant: Mutant, path: Path) -> list[int]:
    lines, size = path.read_text(encoding="utf-8").split("\n"), len(mutant.before)
    return [at + 1 for at in range(len(lines)) if lines[at : at + size] == mutant.before]
