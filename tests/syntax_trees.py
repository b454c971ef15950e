"""Modules as syntax trees, parsed once by each process that reads them."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """What `ast.walk` yields."""
    return tuple(ast.walk(tree))
