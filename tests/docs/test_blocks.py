"""The blocks that readers copy work: commands, requests, configuration and settings."""

import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from subprocess import run
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

import jsonschema_rs
import pytest
import yaml
from django.core.management import call_command

from config.environment import read_environment, variable_names
from connectors.http_job.engine import preset_text
from connectors.registry import connector_class
from mcp_bridge.builtin_tools import BUILT_IN_TOOLS
from tests.api.test_openapi import committed
from tests.docs.reading import GUIDES, TARGETS, Page, parser, report
from tests.processes import ROOT

SECRET = "secret-0123456789"


@pytest.mark.django_db
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.path.name)
def test_what_readers_copy_works(page, tmp_path, monkeypatch):
    def refused() -> Iterator[tuple[str, str]]:
        for place, text, check in checks(page):
            try:
                check()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - of whatever reads it
                why = f"{type(error).__name__}: {error}".partition("\nassert ")[0]
                yield place, f"{why}\n  Correct it, or make a block of `text` of it: {text}"

    monkeypatch.chdir(tmp_path)
    report(refused())


def checks(page: Page) -> Iterator[tuple[str, str, Callable[[], None]]]:
    for place, words in page.commands():
        yield place, " ".join(words), partial(check_program, words)
    for place, text in page.code:
        if found := re.match(r"(GET|POST|PUT|PATCH|DELETE) (/api/(?:<.+?>|[^\s<])*)", text):
            yield place, text, partial(check_request, found[1], found[2])
    for place, text, language in page.blocks:
        check = {"json": check_file, "yaml": check_file, "sh": check_settings}.get(language)
        if check:
            yield place, text, partial(check, text)
    if changes := "".join(text for _, text, language in page.blocks if language == "diff"):
        yield page.path.name, "its changes", partial(check_changes, changes)


def check_program(words: list[str]) -> None:
    """Those of others are not looked at."""
    match words:
        case [".venv/bin/python" | "python", "manage.py", name, *rest] | ["workflow-catalogue", name, *rest]:
            check_command(name, rest)
        case [_, "-m", module, *_] if module.startswith("dev."):
            assert find_spec(module), f"there is no {module}: name the program that does it"
        case ["make", *rest]:
            assert {word for word in rest if "=" not in word} <= TARGETS, "no such target: see `make help`"
        case ["curl", *rest]:
            options = dict(pairwise(rest))
            body = next((options[name] for name in ("-d", "--data-binary", "--json") if name in options), "")
            (address,) = (word for word in rest if re.match("https?://", word))
            check_request(options.get("-X", "POST" if body else "GET"), address, body)


def check_command(name: str, words: list[str]) -> None:
    for file in re.findall(r"[\w-]+\.(?:yaml|json)$", "\n".join(words), re.MULTILINE):
        Path(file).write_text(preset_text("airflow"))
    variables = re.findall(r"^\w+=([A-Z_]+)$", "\n".join(words), re.MULTILINE)
    with patch.dict(os.environ, dict.fromkeys(variables, SECRET)):
        given = parser(name).parse_args(words)
    if name == "add_source":
        model = connector_class(given.kind).Config
        required = {name: SECRET for name, field in model.model_fields.items() if field.is_required()}
        model.model_validate(required | given.config | dict(given.config_file))


def check_request(verb: str, address: str, body: str = "") -> None:
    """By the description of the REST API, if it is an address of that."""
    url, method = urlsplit(address), verb.lower()
    for path, operations in committed()["paths"].items():
        pattern = re.sub(r"\{\w+\}", "[^/]+", path.rstrip("/")) + "/?"
        if method in operations and re.fullmatch(pattern, url.path):
            known = {one["name"] for one in operations[method].get("parameters", ())}
            assert parse_qs(url.query).keys() <= known, f"it takes {sorted(known)}"
            if body.startswith("{"):
                schema = operations[method]["requestBody"]["content"]["application/json"]["schema"]
                jsonschema_rs.validate(schema | {"components": committed()["components"]}, json.loads(body))
            return
    assert not re.match("/api/(?!docs|schema)", url.path), "nothing answers there: see /api/docs/"


def check_file(text: str) -> None:
    """Those of others need only be well-formed."""
    (file := Path("of-the-page.yaml")).write_text(text)
    match json.loads(text) if text.startswith("{") else yaml.safe_load(text):
        case {"mcpServers": {"workflow-catalogue": {"command": command, "args": [*arguments]}}}:
            words = [command, *arguments]
            check_program([re.sub(r".*/(?=\.venv|manage\.py)", "", word) for word in words])
        case {"name": str(name), "arguments": dict(arguments)} if name in BUILT_IN_TOOLS:
            jsonschema_rs.validate(BUILT_IN_TOOLS[name].input_schema, arguments)
        case {"version": 1} as catalogue:
            sources = catalogue.get("sources", {}).items()
            names = [f"{name}_{key}" for name, its in sources for key in its.get("secrets", ())]
            with patch.dict(os.environ, {f"CATALOGUE_SECRET_{name}".upper(): SECRET for name in names}):
                call_command("import_catalogue", str(file))
        case {"workflows": dict()}:
            call_command("import_temporal", str(file), "--dry-run")
        case {"start": _} | {"webhook": _} as declaration:
            if "start" not in declaration:  # A part, which any other can have
                file.write_text(preset_text("airflow") + text)
            call_command("job_engine", str(file))
        case {"api": _}:
            call_command("add_tools", str(file), "--dry-run")


def check_changes(text: str) -> None:
    """They can be made, or a reader has made them who then runs all tests."""
    given = {"input": text, "cwd": ROOT, "text": True, "capture_output": True, "check": False}
    made = run(["git", "apply", "--check"], **given)
    assert 0 in (made.returncode, run(["git", "apply", "--check", "-R"], **given).returncode), made.stderr


def check_settings(text: str) -> None:
    """Lines NAME=value."""
    given = re.findall(r"^([A-Z_]+)=('[^']*'|\"[^\"]*\"|\S*)$", text, re.MULTILINE)
    ours = {name: value.strip("'\"") for name, value in given if name in variable_names()}
    others = {name: value for name, value in os.environ.items() if name not in variable_names()}
    if ours:
        with patch.dict(os.environ, others | ours, clear=True):
            read_environment()
