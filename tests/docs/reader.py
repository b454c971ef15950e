"""A reader who types what the documentation says, at a product of the test's own."""

import argparse
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import pytest
from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import CommandError
from django.http import HttpResponse
from django.test import Client

from config.environment import read_environment, variable_names
from tests.docs.pages import OPERATORS, Command
from tests.processes import ROOT

LASTING = {"beat", "mcp_stdio", "quickstart", "serve", "stdio", "worker"}
ASKING = {"createsuperuser", "migrate", "backup", "restore"}
"""Of both kinds only the arguments are read: they serve, or have a database of their own in other tests."""
OF_THE_ENGINE = "EXAMPLE_ENGINE_"
OURS = {".venv/bin/python", "curl", "make", "python", "workflow-catalogue"}
ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
SUBSTITUTION = re.compile(r"([A-Z]+)=\$\((.*)\)", re.DOTALL)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, re.MULTILINE))


@dataclass
class Reader:
    """Sits in a folder of their own, and has a token that may do everything."""

    folder: Path
    token: str
    patch: pytest.MonkeyPatch
    written: Mapping[str, str] = field(default_factory=dict)
    """What the documentation writes, and what it stands for here."""

    def type(self, command: Command) -> str:
        if substituted := SUBSTITUTION.fullmatch(command.text):
            self.token = self.type(Command(substituted[2])).strip()
            return ""
        text = command.text.replace("$TOKEN", self.token)
        for shown, meant in self.written.items():
            text = text.replace(shown, meant)
        words = Command(text).words
        if "#" in words:
            words = words[: words.index("#")]
        ends = next((at for at, word in enumerate(words) if word in OPERATORS), len(words))
        output = self._run(words[:ends], may_differ="||" in words)
        if words[ends:][:1] == [">"]:
            (self.folder / words[ends + 1]).write_text(output)
        return output

    def _run(self, words: list[str], *, may_differ: bool) -> str:
        while words and (assigned := ASSIGNMENT.fullmatch(words[0])):
            name, value = assigned.groups()
            words = words[1:]
            is_passed_on = any(word.endswith(f"={name}") for word in words)
            assert name in variable_names() or name.startswith(OF_THE_ENGINE) or is_passed_on, name
            self.patch.setenv(name, value)
        match words:
            case []:
                return ""
            case [".venv/bin/python" | "python", "manage.py", *arguments] | [
                "workflow-catalogue",
                *arguments,
            ]:
                return self._manage(arguments, may_differ=may_differ)
            case [".venv/bin/python", "-m", module, *arguments]:
                return self._read_options(f"{module}.settings", arguments)
            case ["make", *arguments]:
                return self._make(arguments)
            case ["curl", *arguments]:
                return self._send(arguments).content.decode()
        pytest.fail(f"{words[0]} is no program of ours: say in the line before the block why nothing runs it")

    def _manage(self, arguments: list[str], *, may_differ: bool) -> str:
        name, *rest = arguments
        if name in LASTING | ASKING:
            parser(name).parse_args(rest)
            return ""
        output = io.StringIO()
        try:
            call_command(name, *rest, stdout=output, stderr=io.StringIO())
        except CommandError as error:
            return f"{output.getvalue()}CommandError: {error}"
        except SystemExit as ended:
            if ended.code not in ((0, 2) if may_differ else (0,)):
                pytest.fail(f"{name} ended with {ended.code}: {output.getvalue()}")
        return output.getvalue()

    @staticmethod
    def _read_options(module: str, arguments: list[str]) -> str:
        import_module(module).read_settings(arguments)
        return ""

    @staticmethod
    def _make(arguments: list[str]) -> str:
        """Targets, and variables that the Makefile reads; the options in ARGS are those of its program."""
        targets = [word for word in arguments if "=" not in word]
        assert targets and set(targets) <= TARGETS, arguments
        for name, value in (word.split("=", 1) for word in arguments if "=" in word):
            assert f"$({name})" in MAKEFILE or f"$(if $({name})" in MAKEFILE, name
            for option in re.findall(r"--[a-z-]+", value):
                program = ROOT / {"eval": "evaluation"}.get(targets[0], targets[0])
                assert any(f'"{option}"' in file.read_text() for file in program.glob("*.py")), option
            for path in re.findall(r"\btests/\S+", value):
                assert (ROOT / path).exists(), path
        return ""

    def _send(self, arguments: Sequence[str]) -> HttpResponse:
        curl = argparse.ArgumentParser(exit_on_error=False)
        curl.add_argument("-X", dest="method")
        curl.add_argument("-H", dest="headers", action="append", default=[])
        curl.add_argument("-d", "--data-binary", dest="body", default="")
        curl.add_argument("-s", "--fail-with-body", action="store_true")
        curl.add_argument("url")
        asked = curl.parse_args(arguments)
        body = asked.body
        if body.startswith("@"):
            body = (self.folder / body[1:]).read_text()
        path = re.sub(r"^https?://[^/]+", "", asked.url)
        headers = dict(header.split(": ", 1) for header in asked.headers)
        answer = Client().generic(
            asked.method or ("POST" if body else "GET"),
            path,
            body,
            content_type=headers.pop("Content-Type", "application/x-www-form-urlencoded"),
            headers=headers,
        )
        if (
            path == "/workflow"
        ):  # Without a model and with another catalogue; the request itself is a good one.
            assert answer.status_code in (404, 503), answer.content
        else:
            assert answer.status_code < 300, (path, answer.status_code, answer.content)
        return answer


def parser(name: str) -> argparse.ArgumentParser:
    """Of a command of ours or of Django's, as it reads its arguments."""
    found = get_commands()[name]
    command = load_command_class(found, name) if isinstance(found, str) else found
    return command.create_parser("manage.py", name)


def fits(shown: Sequence[str], output: str) -> bool:
    """Each line that is shown is there, but for its numbers and for what `...` stands for."""
    there = [_without_numbers(line) for line in output.splitlines()]
    for line in filter(None, shown):
        beginning, dots, _ = _without_numbers(line).partition("...")
        if not any(other.startswith(beginning) if dots else other == beginning for other in there):
            return False
    return True


def _without_numbers(line: str) -> str:
    return re.sub(r"[\d,.]*\d", "0", " ".join(line.split()))


def names_in(shown: str) -> set[str]:
    """The keys of an answer that is shown in part."""
    return set(re.findall(r'"(\w+)": ', shown))


def check_settings(text: str, patch: pytest.MonkeyPatch) -> None:
    """Lines `NAME=value`, as a file of settings has them: each is one, with a value that can be used."""
    for name in variable_names():
        patch.delenv(name, raising=False)
    for assigned in re.finditer(r"^([A-Z_]+)=('(?:[^']*)'|.*)$", text, re.MULTILINE):
        assert assigned[1] in variable_names(), assigned[1]
        patch.setenv(assigned[1], assigned[2].strip("'\""))
    read_environment()
