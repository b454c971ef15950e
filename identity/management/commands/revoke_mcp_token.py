from argparse import ArgumentParser
from typing import Any

from django.db import transaction

from catalogue.history import command, record_change
from catalogue.management.base import CatalogueCommand
from identity.management import chosen_token
from identity.tokens import end_former_secret


class Command(CatalogueCommand):
    help = "Revoke an access token. It stops working within a second."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the token")
        parser.add_argument(
            "--former-secret",
            action="store_true",
            help="revoke only the secret from before the last rotation",
        )

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> str:
        token, by = chosen_token(options["name"]), command("revoke_mcp_token")
        if options["former_secret"]:
            if end_former_secret(token):
                record_change(by, [token], "Ended the former secret.")
            return f"Only the current secret of {token.name} works."
        if token.revoked_at is None:
            token.revoke()
            record_change(by, [token], "Revoked.")
        return f"{token.name} is revoked."  # Django prints it, after the commit
