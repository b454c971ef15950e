from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError

from catalogue.history import command
from catalogue.management.base import CatalogueCommand, refusal_of
from identity.management import chosen_token
from identity.tokens import rotate_token


class Command(CatalogueCommand):
    help = "Give an access token a new secret. Prints only the secret, which cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="name of the token")
        parser.add_argument(
            "--overlap",
            type=float,
            default=0.0,
            metavar="HOURS",
            help="hours for which the current secret keeps working beside the new one (default: 0)",
        )

    def handle(self, *args: Any, **options: Any) -> str:
        token = chosen_token(options["name"])
        try:
            return rotate_token(token, overlap_hours=options["overlap"], by=command("rotate_mcp_token"))
        except ValidationError as error:
            raise refusal_of(error) from None
