"""What the documentation names is there: tests, commands, settings, addresses, pages and pictures."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.urls import Resolver404, resolve

from config.environment import variable_names
from tests.docs.pages import DOCS, GUIDES, inline_code
from tests.docs.reader import parser
from tests.processes import ROOT
from tests.syntax_trees import nodes_of, tree_of

DECISIONS = DOCS / "decisions"
PICTURES = DOCS / "pictures"
OTHERS_VARIABLES = {
    "OPENAI_API_KEY",
    "OTEL_SERVICE_NAME",
    "OTEL_EXPORTER_OTLP_HEADERS",
}
COMMAND = re.compile(r"(?:\.venv/bin/python )?(?:manage\.py|workflow-catalogue) ([a-z_]+)\b(.*)", re.DOTALL)


def named_tests() -> list[tuple[str, str]]:
    text = (DOCS / "security.md").read_text(encoding="utf-8")
    return re.findall(r"`([\w/]+\.py)::(\w+)`", text)


def test_each_threat_has_a_defence_and_a_test_that_is_there() -> None:
    table = (DOCS / "security.md").read_text(encoding="utf-8").partition("| threat |")[2].partition("\n\n")[0]
    rows = [row for row in table.splitlines()[2:] if not row.startswith("| **")]
    assert len(rows) > 30
    assert [row for row in rows if not re.search(r"\| .+ \| `[\w/]+\.py::test_", row)] == []
    function = (ast.FunctionDef, ast.AsyncFunctionDef)
    for file, name in named_tests():
        tree = tree_of(ROOT / "tests" / file)
        assert name in {node.name for node in nodes_of(tree) if isinstance(node, function)}, f"{file}::{name}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_the_settings_that_a_page_names_are_settings(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:CATALOGUE|OPENAI|EMAIL|OTEL|CELERY)_[A-Z_]*[A-Z]\b(?!\*)", text))
    known = set(variable_names()) | OTHERS_VARIABLES
    assert sorted(name for name in named - known if not name.startswith("CATALOGUE_SECRET_")) == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_the_commands_that_a_page_mentions_and_their_options_are_there(page: Path) -> None:
    for code in inline_code(page):
        if found := COMMAND.match(code):
            options = parser(found[1])._option_string_actions
            assert set(re.findall(r"--[a-z-]+", found[2])) <= set(options), code


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_the_addresses_that_a_page_mentions_are_served(page: Path) -> None:
    for code in inline_code(page):
        if found := re.match(r"(?:(?:GET|POST|PUT|PATCH|DELETE) )?(/api\b[^\s?]*)", code):
            path = re.sub(r"\{[^}]*\}|<[^>]*>|\bID\b|\.\.\.", "1", found[1])
            assert is_served(path), code


def is_served(path: str) -> bool:
    for ending in ("", "/"):
        try:
            resolve(path + ending)
        except Resolver404:
            continue
        return True
    return False


def test_the_page_of_commands_has_every_command_and_only_real_options() -> None:
    rows = dict(
        re.findall(
            r"^\| `(?!manage\.py)(\w+)((?:[^`]|\\`)*)`",
            (DOCS / "commands.md").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    ours = {file.stem for file in ROOT.glob("*/management/commands/*.py")} - {"__init__"}
    assert set(rows) == ours
    for name, usage in rows.items():
        assert set(re.findall(r"--[a-z-]+", usage)) <= set(parser(name)._option_string_actions), name


def test_every_page_is_in_the_navigation_once() -> None:
    with (ROOT / "deploy" / "site" / "zensical.toml").open("rb") as file:
        nav = tomllib.load(file)["project"]["nav"]
    named = sorted(pages_of(nav))
    assert named == sorted([page.name for page in DOCS.glob("*.md")] + ["decisions/index.md"])


def pages_of(part: Any) -> Iterator[str]:
    match part:
        case str(page):
            yield page
        case dict():
            yield from pages_of(list(part.values()))
        case list():
            for one in part:
                yield from pages_of(one)


def test_the_list_of_decisions_has_all_of_them() -> None:
    rows = []
    for file in sorted(DECISIONS.glob("[0-9]*.md")):
        number, title = re.match(r"# 0*(\d+)\.? (.*)", file.read_text(encoding="utf-8")).groups()
        rows.append(f"| {number} | [{title}]({file.name}) |")
    table = "\n".join(rows)
    assert table in (DECISIONS / "index.md").read_text(encoding="utf-8"), f"Put this into index.md:\n{table}"


def test_the_front_page_is_short() -> None:
    assert (ROOT / "README.md").stat().st_size < 12_000


def test_pictures_are_small_and_shown() -> None:
    pictures = list(PICTURES.iterdir())
    assert all(picture.stat().st_size < 150_000 for picture in pictures)
    assert sum(picture.stat().st_size for picture in pictures) < 1_000_000
    text = "".join(page.read_text(encoding="utf-8") for page in GUIDES)
    assert [picture.name for picture in pictures if f"pictures/{picture.name})" not in text] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_the_files_at_the_root_link_to_what_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [target.partition("#")[0] for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text)]
    assert [target for target in targets if target and not (ROOT / target).exists()] == []
