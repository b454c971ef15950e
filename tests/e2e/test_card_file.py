"""The built card, as it is committed and served."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.node_tools import PACKAGES, node
from tests.processes import ROOT

__all__ = ["node"]
pytestmark = pytest.mark.e2e

CARDS = ROOT / "mcp_bridge" / "cards"
MAX_BYTES = 40_000
NAMESPACES = {"http://www.w3.org/2000/svg"}
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\bfetch\(|DOMParser"
)


@pytest.fixture(scope="module")
def card() -> str:
    return (CARDS / "card.html").read_text(encoding="utf-8")


def test_the_card_is_built_from_its_sources(node: Path, card: str) -> None:
    command = [node, "dev/scripts/build_cards.mjs", "--print"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert built.stdout == card, "run `make cards`"
    assert len(card.encode()) <= MAX_BYTES


def test_the_sources_fit_the_types_of_the_specification(node: Path) -> None:
    command = [node, PACKAGES / "typescript" / "bin" / "tsc", "--project", CARDS]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_card_loads_nothing_and_makes_no_markup_of_text(card: str) -> None:
    assert set(re.findall(r"https?://[^\"'`\s<>)]*", card)) <= NAMESPACES
    assert not UNSAFE.findall(card)
    assert not re.findall(r"<(?:link|img|iframe|base)\b|<script[^>]*\bsrc|@import|url\(", card)
    assert card.count("</script>") == card.count("<script>") == 1
