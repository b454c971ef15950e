"""Options of commands for secrets, which should not stand on a command line."""

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import CommandError


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ArgumentTypeError("has to be a JSON object")
    return value


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError("has to look like KEY=VALUE")
    return key, value


def _key_and_variable(text: str) -> tuple[str, str]:
    key, variable = _key_and_value(text)
    if variable not in os.environ:
        raise ArgumentTypeError(f"there is no variable {variable} in the environment")
    return key, os.environ[variable]


def add_secret_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--secret",
        type=_key_and_value,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that is stored encrypted, such as api_key; may be repeated. Other users of this "
        "machine can read it in the list of processes while the command runs",
    )
    parser.add_argument(
        "--secret-env",
        type=_key_and_variable,
        action="append",
        default=[],
        metavar="KEY=VARIABLE",
        help="the same, with the value of an environment variable; may be repeated",
    )
    parser.add_argument(
        "--secrets-stdin",
        action="store_true",
        help="the same, from standard input: a JSON object with all of them by key",
    )


def read_secrets(options: dict[str, Any]) -> dict[str, str]:
    given = dict(options["secret"]) | dict(options["secret_env"])
    if not options["secrets_stdin"]:
        return given
    try:
        read = json_object(sys.stdin.read())
    except ArgumentTypeError as error:
        # Without the text: it is secret.
        raise CommandError(f"standard input: {error}") from None
    if not all(isinstance(value, str) for value in read.values()):
        raise CommandError("standard input: each secret has to be a text")
    return given | read
