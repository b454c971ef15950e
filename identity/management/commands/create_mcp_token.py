from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.db import transaction
from django.utils import timezone

from access.callers import Scope
from catalogue.history import command, record_change
from catalogue.management.base import CatalogueCommand, refusal_of
from identity.management import add_toolset_option, chosen_toolset, chosen_user
from identity.tokens import Expiry, create_token


class Command(CatalogueCommand):
    help = "Create an access token for MCP and REST. Prints only the token, which cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="who or what will use the token")
        parser.add_argument(
            "--scope",
            action="append",
            choices=Scope.values,
            dest="scopes",
            help="a scope of the token; may be repeated (default: workflows:read and workflows:run)",
        )
        parser.add_argument("--purpose", default="", help="what the token is for and where it is stored")
        parser.add_argument(
            "--owner",
            metavar="USERNAME",
            help="the owner: the token stops working when this user is disabled",
        )
        ends = parser.add_mutually_exclusive_group()
        ends.add_argument(
            "--expires",
            type=int,
            metavar="DAYS",
            help="days until the token expires (default: CATALOGUE_TOKEN_DAYS)",
        )
        ends.add_argument(
            "--never-expires", action="store_true", help="create a token that works until it is revoked"
        )
        parser.add_argument(
            "--calls-per-minute", type=int, metavar="N", help="limit of workflow calls per minute"
        )
        parser.add_argument(
            "--calls-at-once", type=int, metavar="N", help="calls that may follow each other without a pause"
        )
        parser.add_argument(
            "--inline-wait",
            type=int,
            metavar="SECONDS",
            help="seconds after which its calls return a handle; choose less than the client's own timeout",
        )
        add_toolset_option(parser, what="bind the token to this toolset: it sees and runs nothing else")

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> str:
        days = options["expires"]
        if days is not None and not 1 <= days <= 36_500:
            raise CommandError("--expires must be between 1 and 36500 days.")
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
        return text  # Django prints it, after the commit
