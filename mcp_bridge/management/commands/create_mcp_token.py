from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.db import transaction
from django.utils import timezone

from catalogue.access import Scope
from catalogue.history import command, record_change
from catalogue.management.base import CatalogueCommand, refusal_of
from mcp_bridge.management import add_toolset_option, chosen_toolset, chosen_user
from mcp_bridge.tokens import Expiry, create_token


class Command(CatalogueCommand):
    help = "Make an access token for MCP and REST. Prints the token alone; it cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="who or what will use it")
        parser.add_argument(
            "--scope",
            action="append",
            choices=Scope.values,
            dest="scopes",
            help="what it allows; may be repeated (default: workflows:read and workflows:run)",
        )
        parser.add_argument("--purpose", default="", help="what it is for, and where it is kept")
        parser.add_argument(
            "--owner", metavar="USERNAME", help="whose it is: it stops when this user is disabled"
        )
        ends = parser.add_mutually_exclusive_group()
        ends.add_argument(
            "--expires",
            type=int,
            metavar="DAYS",
            help="stop accepting it after this many days (default: CATALOGUE_TOKEN_DAYS)",
        )
        ends.add_argument("--never-expires", action="store_true", help="accept it until it is revoked")
        parser.add_argument(
            "--calls-per-minute", type=int, metavar="N", help="calls of workflows that it may make"
        )
        parser.add_argument(
            "--calls-at-once", type=int, metavar="N", help="of these, so many without a pause"
        )
        parser.add_argument(
            "--inline-wait",
            type=int,
            metavar="SECONDS",
            help="answer its calls with a handle after this time: less than its client waits",
        )
        add_toolset_option(parser, what="bind it to this toolset: it sees and runs nothing else")

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        days = options["expires"]
        if days is not None and not 1 <= days <= 36_500:
            raise CommandError("--expires takes 1 to 36500 days.")
        expires_at = timezone.now() + timedelta(days=days) if days else Expiry.USUAL
        try:
            token, text = create_token(
                name=options["name"],
                scopes=options["scopes"],
                expires_at=None if options["never_expires"] else expires_at,
                owner=chosen_user(options["owner"]),
                purpose=options["purpose"],
                toolset=chosen_toolset(options),
                inline_wait_seconds=options["inline_wait"],
                calls_per_minute=options["calls_per_minute"],
                calls_at_once=options["calls_at_once"],
            )
        except ValidationError as error:
            raise refusal_of(error) from None
        record_change(command("create_mcp_token"), [token], "Added.")
        self.stdout.write(text)
