"""The Markdown files of the project: links, headings, code and blocks, each with its place, `page:line`."""

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from django.core.management import get_commands, load_command_class
from django.core.management.base import CommandParser
from markdown_it import MarkdownIt

from tests.processes import ROOT


class Page:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self.code: list[tuple[str, str]] = []
        self.blocks: list[tuple[str, str, str]] = []  # With their language
        tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
        for before, token in zip(["", *(token.type for token in tokens)], tokens, strict=False):
            line = token.map[0] + 1 if token.map else 0
            for part in token.children or [token]:
                place = f"{path.relative_to(ROOT)}:{line}"
                line += part.type.endswith("break")
                if part.type == "fence":
                    self.blocks.append((place, part.content, part.info.partition(" ")[0]))
                elif part.type == "code_inline":
                    self.code.append((place, part.content))
                html = re.findall(r'(?:href|src)="([^"]+)"', part.content) if "html" in part.type else []
                attributes = (str(part.attrs[name]) for name in ("href", "src") if name in part.attrs)
                self.links += [(place, link) for link in (*html, *attributes)]
            if before == "heading_open":  # As GitHub does it
                shown = "".join(part.content for part in token.children or ()).strip().lower()
                self.anchors.add(re.sub(r"[^\w\- ]", "", shown).replace(" ", "-"))

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """The words of each program that a block starts, without the variables before it."""
        begin = {"console": r"\$ ", "bash": "", "sh": "", "yaml": r" *(?:- )?run: "}
        for place, text, language in self.blocks:
            text = re.sub(r"^#.*|\\\n", "", text, flags=re.MULTILINE)
            line = rf"^{begin.get(language, '(?!)')}((?:[^\n'\"]|'[^']*'|\"[^\"]*\")+)"
            for command in re.findall(line, text, re.MULTILINE):
                inner = re.sub(r"^[A-Z]+=\$\((.*)\)", r"\1", command)
                reader = shlex.shlex(inner, posix=True, punctuation_chars="|&>;")
                reader.whitespace_split = True
                words: list[str] = []
                for word in [*reader, ";"]:
                    if words and word in ("|", "||", "&&", ">", ";"):
                        yield place, words
                        words = []
                    elif words or not re.match(r"[A-Z_]+=", word):
                        words.append(word)


def listed(*patterns: str) -> list[Path]:
    """The files that git knows."""
    names = subprocess.check_output(["git", "ls-files", *patterns], cwd=ROOT, text=True).splitlines()
    return [path for name in names if (path := ROOT / name).is_file()]


PAGES = [Page(path) for path in listed("*.md")]
NOW = [page for page in PAGES if page.path != ROOT / "CHANGELOG.md"]
GUIDES = [page for page in NOW if page.path.parent in (ROOT, ROOT / "docs")]
"""What readers follow, and copy from."""
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def parser(name: str) -> CommandParser:
    """That of a command of ours or of Django's."""
    assert name in get_commands(), f"there is no command {name}: see `manage.py help`"
    found = get_commands()[name]
    command = load_command_class(found, name) if isinstance(found, str) else found
    return command.create_parser("manage.py", name)


def report(problems: Iterable[tuple[str, str]]) -> None:
    told = "\n".join(f"{place}: {problem}" for place, problem in problems)
    assert not told, f"\n{told}"
