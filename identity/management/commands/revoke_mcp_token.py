from argparse import ArgumentParser
from typing import Any

from catalogue.history import command
from catalogue.management.base import CatalogueCommand
from identity.management import chosen_token
from identity.tokens import end_former_secret, revoke_tokens


class Command(CatalogueCommand):
    help = "Revoke an access token. It stops working within a second."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the token")
        parser.add_argument(
            "--former-secret",
            action="store_true",
            help="revoke only the secret from before the last rotation",
        )

    def handle(self, *args: Any, **options: Any) -> str:
        token, by = chosen_token(options["name"]), command("revoke_mcp_token")
        if options["former_secret"]:
            end_former_secret(token, by=by)
            return f"Only the current secret of {token.name} works."
        revoke_tokens([token], by=by)
        return f"{token.name} is revoked."
