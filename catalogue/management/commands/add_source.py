"""`manage.py add_source`"""

import json
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from catalogue.models import Source
from catalogue.sources import create_source
from connectors.registry import connector_kinds


def _json_object(text: str) -> dict[str, Any]:
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


class Command(BaseCommand):
    help = "Add a connection to an engine. Its first listing is due at once; refresh_sources makes it now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what the source is called")
        parser.add_argument("kind", help=f"one of: {', '.join(connector_kinds())}")
        parser.add_argument(
            "--config", type=_json_object, default={}, metavar="JSON", help="the engine's settings"
        )
        parser.add_argument(
            "--secret",
            type=_key_and_value,
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="a setting that is stored encrypted, such as api_key; may be repeated",
        )
        parser.add_argument(
            "--refresh-interval", type=int, metavar="SECONDS", help="between two listings; 0: by hand"
        )
        parser.add_argument(
            "--expose-new", action="store_true", help="enable workflows as soon as discovery finds them"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        policy = Source.NewWorkflows.EXPOSED if options["expose_new"] else Source.NewWorkflows.HIDDEN
        try:
            source = create_source(
                name=options["name"],
                kind=options["kind"],
                config=options["config"],
                credentials=dict(options["secret"]),
                new_workflows=policy,
                refresh_interval=options["refresh_interval"],
            )
        except ValidationError as error:
            raise CommandError(
                "\n".join(f"{field}: {' '.join(told)}" for field, told in error.message_dict.items())
            ) from None
        self.stdout.write(f"Added source {source.name} ({source.kind}).")
