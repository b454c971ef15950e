import json
import sys
from argparse import Action, ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator
from enum import Enum
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from django.core.exceptions import ValidationError
from django.db import transaction
from pydantic import SecretStr

from catalogue.actions.sources import create_source
from catalogue.connections import EMPTY, Setting, settings_of, summary_of
from catalogue.history import command, record_change
from catalogue.management.base import (
    CatalogueCommand,
    add_field_options,
    add_secret_options,
    json_object,
    key_and_file,
    read_secrets,
    refusal_of,
)
from catalogue.models import Source
from catalogue.rest.sources import NewSourceSerializer
from connectors.errors import Misconfigured
from connectors.registry import connector_class, connector_kinds

FIELDS = ("refresh_interval", "max_concurrent", "change_policy", "vanishing_share_percent")
WIDTH = 100
INDENT = " " * 6
TYPES = {str: "text", SecretStr: "text", int: "whole number", float: "number", bool: "true or false"}


class KindHelp(Action):
    """An option that explains a kind and exits, like `--help`."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        try:
            text = describe_kind(str(values))
        except Misconfigured as error:
            raise ArgumentError(self, error.message) from None
        sys.stdout.write(text)
        parser.exit()


def describe_kind(kind: str) -> str:
    """Raises Misconfigured for an unknown or unusable kind."""
    connector = connector_class(kind)
    settings = list(settings_of(kind).values())
    paragraphs = [f"{kind}: {connector.label}", fill(summary_of(connector), WIDTH)]
    for heading, secret in (("In --config, as JSON:", False), ("Secrets:", True)):
        if lines := [line for setting in settings if setting.secret is secret for line in _lines(setting)]:
            paragraphs.append("\n".join([heading, *lines]))
    return "\n\n".join(paragraphs) + "\n"


def _lines(setting: Setting) -> Iterator[str]:
    yield f"  {setting.name} ({', '.join(filter(None, _facts(setting)))})"
    text = f"{setting.title}. {setting.help}"
    yield fill(text, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)


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


class Command(CatalogueCommand):
    help = "Add a connection to an engine. Its first listing is due at once; refresh_sources makes it now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        kinds = ", ".join(connector_kinds())
        parser.add_argument("name", help="what the source is called")
        parser.add_argument("kind", help=f"one of: {kinds}")
        parser.add_argument(
            "--kind-help", action=KindHelp, metavar="KIND", help="explain the settings of a kind, and exit"
        )
        parser.add_argument(
            "--config", type=json_object, default={}, metavar="JSON", help="the engine's settings"
        )
        parser.add_argument(
            "--config-file",
            type=key_and_file,
            action="append",
            default=[],
            metavar="KEY=FILE",
            help="a setting that is the text of a file, such as declaration=engine.yaml; may be repeated",
        )
        add_secret_options(parser)
        add_field_options(parser, NewSourceSerializer(), *FIELDS, vanishing_share_percent="tolerated_loss")
        new = parser.add_mutually_exclusive_group()
        new.add_argument(
            "--expose-new", action="store_true", help="enable workflows as soon as discovery finds them"
        )
        new.add_argument(
            "--hold-new", action="store_true", help="list new workflows among the changes to review"
        )

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> str:
        policy = Source.NewWorkflows.EXPOSED if options["expose_new"] else Source.NewWorkflows.HIDDEN
        if options["hold_new"]:
            policy = Source.NewWorkflows.HELD
        try:
            source = create_source(
                name=options["name"],
                kind=options["kind"],
                config=options["config"] | dict(options["config_file"]),
                credentials=read_secrets(options),
                new_workflows=policy,
                **{name: options[name] for name in FIELDS},
            )
        except ValidationError as error:
            raise refusal_of(error) from None
        record_change(command("add_source"), [source], "Added.")
        return f"Added source {source.name} ({source.kind})."  # Django prints it, after the commit
