"""Private names of other packages change without notice: only a room's `compat.py` may import them."""

import ast
from collections.abc import Iterator

from tests.processes import ROOT

ROOMS = ("connectors", "catalogue", "executions", "mcp_bridge", "orchestration", "config")


def private_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            package, *parts = name.split(".")
            if package not in ROOMS and any(part.startswith("_") and part[:2] != "__" for part in parts):
                yield name


def test_only_compat_modules_import_private_names_of_other_packages() -> None:
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
        if file.name != "compat.py"
        for name in private_imports(ast.parse(file.read_bytes()))
    }
    assert not found


def test_a_private_name_is_noticed_in_every_form_of_import() -> None:
    text = "import a._b\nfrom a._b import c\nfrom a import _c\nfrom __future__ import annotations\nimport a.b"
    assert list(private_imports(ast.parse(text))) == ["a._b", "a._b.c", "a._c"]
