"""`manage.py add_source`"""

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError

from catalogue.management.base import CatalogueCommand
from catalogue.management.kind_help import KindHelp
from catalogue.management.secret_options import add_secret_options, json_object, read_secrets
from catalogue.models import Source
from catalogue.models.source import TOLERATED_LOSS
from catalogue.sources import create_source
from connectors.registry import connector_kinds


class Command(CatalogueCommand):
    help = "Add a connection to an engine. Its first listing is due at once; refresh_sources makes it now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        kinds = ", ".join(connector_kinds())
        parser.add_argument("name", help="what the source is called")
        parser.add_argument("kind", help=f"one of: {kinds}")
        parser.add_argument(
            "--kind-help", action=KindHelp, metavar="KIND", help="explain the settings of a kind, and end"
        )
        parser.add_argument(
            "--config", type=json_object, default={}, metavar="JSON", help="the engine's settings"
        )
        add_secret_options(parser)
        parser.add_argument(
            "--refresh-interval", type=int, metavar="SECONDS", help="between two listings; 0: by hand"
        )
        parser.add_argument(
            "--max-concurrent", type=int, metavar="N", help="runs of all its workflows at a time"
        )
        new = parser.add_mutually_exclusive_group()
        new.add_argument(
            "--expose-new", action="store_true", help="enable workflows as soon as discovery finds them"
        )
        new.add_argument(
            "--hold-new", action="store_true", help="list new workflows among the changes to review"
        )
        parser.add_argument(
            "--change-policy",
            choices=Source.ChangePolicy.values,
            default=Source.ChangePolicy.CAREFUL.value,
            help="what happens when the engine changes an enabled workflow (default: %(default)s)",
        )
        parser.add_argument(
            "--tolerated-loss",
            type=int,
            default=TOLERATED_LOSS,
            metavar="PERCENT",
            help="a listing that loses more is held until somebody confirms it (default: %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        policy = Source.NewWorkflows.EXPOSED if options["expose_new"] else Source.NewWorkflows.HIDDEN
        if options["hold_new"]:
            policy = Source.NewWorkflows.HELD
        try:
            source = create_source(
                name=options["name"],
                kind=options["kind"],
                config=options["config"],
                credentials=read_secrets(options),
                new_workflows=policy,
                change_policy=options["change_policy"],
                vanishing_share_percent=options["tolerated_loss"],
                refresh_interval=options["refresh_interval"],
                max_concurrent=options["max_concurrent"],
            )
        except ValidationError as error:
            raise CommandError(
                "\n".join(f"{field}: {' '.join(told)}" for field, told in error.message_dict.items())
            ) from None
        self.stdout.write(f"Added source {source.name} ({source.kind}).")
