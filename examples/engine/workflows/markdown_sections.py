"""Splits Markdown into sections, far enough for an outline: headings, prose and links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from examples.engine.progress import Progress
from examples.engine.workflows.words import find_words

LINES_PER_REPORT = 1000

FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?")
UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
# What starts like this is no paragraph, so a line of dashes below it is a rule and not an underline.
NO_PARAGRAPH = re.compile(r" {0,3}(?:[>|]|[-*+] |[0-9]+[.)] )| {4}|\t")
CODE_SPAN = re.compile(r"`[^`]+`")
LINK = re.compile(r"!?\[([^\[\]]*)\]\(\s*<?([^\s()<>]+)>?[^()]*\)|<(https?://[^\s<>]+)>")
DEFINITION = re.compile(r" {0,3}\[([^\[\]]+)\]:\s*<?([^\s<>]+)>?.*")


@dataclass(frozen=True, slots=True)
class Link:
    text: str
    url: str
    line: int


@dataclass(slots=True)
class Section:
    """A heading and the prose below it, up to the next heading. Level 0 is what precedes all headings."""

    level: int
    title: str
    line: int
    words: int = 0
    links: list[Link] = field(default_factory=list)


def read_sections(markdown: str, progress: Progress) -> list[Section]:
    lines = markdown.splitlines()
    sections = [Section(level=0, title="", line=1)]
    paragraph = ""
    for number, line in prose_lines(lines):
        if number % LINES_PER_REPORT == 0:
            progress.report(100 * number / len(lines), f"Read {number} of {len(lines)} lines")
        if paragraph and UNDERLINE.fullmatch(line):
            sections[-1].words -= len(find_words(paragraph))
            sections.append(Section(1 if "=" in line else 2, paragraph, number - 1))
            paragraph = ""
        elif heading := HEADING.fullmatch(line):
            sections.append(Section(len(heading[1]), heading_title(heading[2] or ""), number))
            paragraph = ""
        else:
            text = add_prose(sections[-1], number, line)
            paragraph = "" if NO_PARAGRAPH.match(line) else text
    return sections


def prose_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The numbered lines that are not in a fenced block of code."""
    fence = ""
    for number, line in enumerate(lines, start=1):
        opening = FENCE.match(line)
        if fence:
            closes = opening and opening[1].startswith(fence) and not line.strip().strip(fence[0])
            fence = "" if closes else fence
        elif opening:
            fence = opening[1]
        else:
            yield number, line


def add_prose(section: Section, number: int, line: str) -> str:
    """Count a line's words and keep its links; what a reader sees of it is returned."""
    if definition := DEFINITION.fullmatch(line):
        section.links.append(Link(definition[1], definition[2], number))
        return ""
    for found in LINK.finditer(CODE_SPAN.sub("", line)):
        section.links.append(Link(found[1] or found[3] or "", found[2] or found[3], number))
    text = visible_text(line)
    section.words += len(find_words(text))
    return text


def heading_title(text: str) -> str:
    """The text of a heading without the # signs that may close it, which a space must set off."""
    closed = text.strip()
    unclosed = closed.rstrip("#")
    return visible_text(unclosed if not unclosed or unclosed[-1].isspace() else closed)


def visible_text(line: str) -> str:
    return LINK.sub(lambda found: found[1] or found[3] or "", line).replace("`", "").strip()
