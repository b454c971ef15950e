from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from catalogue.history import command, record_change
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

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> str:
        token = chosen_token(options["name"])
        try:
            text = rotate_token(token, overlap_hours=options["overlap"])
        except ValidationError as error:
            raise refusal_of(error) from None
        record_change(command("rotate_mcp_token"), [token], "Rotated: it has a new secret.")
        return text  # Django prints it, after the commit
