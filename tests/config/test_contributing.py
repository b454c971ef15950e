"""The way through the code in docs/architecture.md leads to what is there."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import blocks_of
from tests.syntax_trees import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "telemetry",
    "connectors",
    "audit",
    "catalogue",
    "executions",
    "orchestration",
    "mcp_bridge",
    "config",
)
PAGE = ROOT / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")
WALKS = TEXT.partition("## Four walks through the code")[2].partition("\n## ")[0].strip().split("\n\n")


@cache
def names_in_the_product() -> frozenset[str]:
    definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    files = (file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
    nodes = (node for file in files for node in nodes_of(tree_of(file)))
    return frozenset(node.name for node in nodes if isinstance(node, definition))


def is_there(name: str, rooms: set[str]) -> bool:
    """A path from the root, or below one of the rooms of the walk; or the name of a class or function."""
    if "/" not in name and not name.endswith(".py"):
        return name in names_in_the_product()
    return (ROOT / name).exists() or any(any((ROOT / room).rglob(name.rstrip("/"))) for room in rooms)


def test_there_are_four_walks() -> None:
    assert len(WALKS) == 4


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk[2:26])
def test_what_a_walk_names_is_there(walk: str) -> None:
    named = re.findall(r"`([^`]+)`", walk)
    rooms = {name.partition("/")[0] for name in named} & set(ROOMS)
    assert named
    assert [name for name in named if not is_there(name, rooms)] == []


def test_the_picture_shows_the_rooms() -> None:
    picture = (ROOT / "docs" / "pictures" / "architecture.svg").read_text(encoding="utf-8")
    assert set(ROOMS) <= set(re.findall(r">(\w+)</text>", picture))


def test_the_first_change_can_be_made() -> None:
    """Or has been made, by a reader who then runs all tests."""
    change = "".join(block.text for block in blocks_of(PAGE) if block.language == "diff")
    check = ["git", "apply", "--check", "-"]
    results = [
        subprocess.run([*check, *way], input=change, cwd=ROOT, capture_output=True, text=True)
        for way in ([], ["--reverse"])
    ]
    assert any(result.returncode == 0 for result in results), results[0].stderr
