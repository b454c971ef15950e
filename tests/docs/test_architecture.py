"""docs/architecture.md: its picture, its walks and its first change."""

import ast
import re
import subprocess
import textwrap

from tests.processes import ROOT
from tests.syntax_trees import nodes_of, tree_of

TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = re.findall(r"^\| `(\w+)/` \|", TEXT, re.MULTILINE)


def test_the_picture_shows_the_rooms() -> None:
    picture = (ROOT / "docs" / "pictures" / "architecture.svg").read_text(encoding="utf-8")
    assert ROOMS and set(ROOMS) <= set(re.findall(r">(\w+)</text>", picture))


def test_the_walks_name_files_and_functions_that_exist() -> None:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    known = {node.name for file in files for node in nodes_of(tree_of(file)) if isinstance(node, definition)}
    walks = TEXT.partition("## Four walks")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w/.]+)`", walks))
    paths = {name for name in named if name.endswith(".py")}
    assert {path for path in paths if not any(str(file).endswith(f"/{path}") for file in files)} == set()
    assert named - paths - known == set()


def test_the_first_change_can_be_made() -> None:
    """Or has been made, by a reader who then runs all tests."""
    blocks = re.findall(r"^ *```diff\n(.*?)^ *```$", TEXT, re.DOTALL | re.MULTILINE)
    change = "".join(map(textwrap.dedent, blocks))
    check = ["git", "apply", "--check", "-"]
    results = [
        subprocess.run([*check, *way], input=change, cwd=ROOT, capture_output=True, text=True)
        for way in ([], ["--reverse"])
    ]
    assert any(result.returncode == 0 for result in results), results[0].stderr
