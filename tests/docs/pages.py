"""The documentation as its readers meet it: pages, fenced blocks, and the commands in these."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.processes import ROOT

DOCS = ROOT / "docs"
GUIDES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
"""What readers follow; decisions tell of the past."""
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<excuse>[^\n]+) -->\n)?"
    r"(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
"""A block. The line before it may say why nothing can run it: `<!-- not run: WHY. -->`."""
OPERATORS = {"|", "||", "&&", ">", ";"}


@dataclass(frozen=True)
class Command:
    text: str
    output: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """As a shell splits them; its operators are words of their own."""
        reader = shlex.shlex(self.text, posix=True, punctuation_chars="|&>;")
        reader.whitespace_split = True
        return list(reader)


@dataclass(frozen=True)
class Block:
    page: str  # From the root of the project
    line: int
    language: str
    text: str
    excuse: str | None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> Iterator[Command]:
        """Of a console those behind `$`, with what is shown below each; of a script all."""
        lines = self.text.splitlines()
        while lines:
            line = lines.pop(0)
            if self.language == "console":
                assert line.startswith("$ "), f"{self.place}: begin with a command: {line}"
            elif not line.strip() or line.startswith("#"):
                continue
            text = line.removeprefix("$ ")
            while _goes_on(text):
                text += "\n" + lines.pop(0)
            output = []
            while self.language == "console" and lines and not lines[0].startswith("$ "):
                output.append(lines.pop(0))
            yield Command(text.replace("\\\n", " "), tuple(output))


def _goes_on(text: str) -> bool:
    if text.endswith("\\"):
        return True
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True  # A quotation that has not ended
    return False


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    assert text.count("```") == 2 * len(FENCE.findall(text)), f"{page.name}: a fence without an end"
    return [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start("language")) + 1,
            language=found["language"],
            text=textwrap.dedent(found["text"]),
            excuse=found["excuse"],
        )
        for found in FENCE.finditer(text)
    ]


BLOCKS = [block for page in GUIDES for block in blocks_of(page)]


def inline_code(page: Path) -> list[str]:
    """What stands between backticks in running text."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))
