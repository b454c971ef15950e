"""What a kind of engine wants to be told, for a terminal."""

import json
import sys
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator
from enum import Enum
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from pydantic import SecretStr

from catalogue.engine_settings import EMPTY, Setting, settings_of
from catalogue.kinds import summary_of
from connectors.errors import Misconfigured
from connectors.registry import connector_class

WIDTH = 100
INDENT = " " * 6
TYPES = {str: "text", SecretStr: "text", int: "whole number", float: "number", bool: "true or false"}


class KindHelp(Action):
    """An option that explains a kind and ends the command, like `--help`."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        try:
            told = describe_kind(str(values))
        except Misconfigured as error:
            raise ArgumentError(self, error.message) from None
        sys.stdout.write(told)
        parser.exit()


def describe_kind(kind: str) -> str:
    """Raises Misconfigured for one that is unknown or cannot be used."""
    connector = connector_class(kind)
    settings = list(settings_of(kind).values())
    paragraphs = [f"{kind}: {connector.label}", fill(summary_of(connector), WIDTH)]
    for heading, secret in (("In --config, as JSON:", False), ("Secrets:", True)):
        if lines := [line for setting in settings if setting.secret is secret for line in _lines(setting)]:
            paragraphs.append("\n".join([heading, *lines]))
    return "\n\n".join(paragraphs) + "\n"


def _lines(setting: Setting) -> Iterator[str]:
    yield f"  {setting.name} ({', '.join(filter(None, _facts(setting)))})"
    told = f"{setting.title}. {setting.help}"
    yield fill(told, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)


def _facts(setting: Setting) -> Iterator[str]:
    yield _type_in_words(setting.type)
    yield str(setting.bounds)
    if setting.required:
        yield "required"
    elif setting.default not in EMPTY:
        yield f"default {json.dumps(setting.default)}"


def _type_in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(json.dumps, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(json.dumps(member.value) for member in kind)
    if get_origin(kind) is list:
        return "list"
    return "object" if get_origin(kind) is dict else TYPES.get(kind, "text")
