from argparse import ArgumentParser
from typing import Any

from catalogue.management.base import CatalogueCommand
from identity.models import AccessToken


class Command(CatalogueCommand):
    help = "List the access tokens with state, owner, expiry, last use, scopes and name, separated by tabs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--usable", action="store_true", help="only usable tokens")

    def handle(self, *args: Any, **options: Any) -> None:
        tokens = AccessToken.objects.usable() if options["usable"] else AccessToken.objects.all()
        for token in tokens.select_related("owner").order_by("name"):
            ends = f"{token.expires_at:%Y-%m-%d}" if token.expires_at else "never"
            used = f"{token.last_used_at:%Y-%m-%d %H:%M}" if token.last_used_at else "never"
            owner = str(token.owner or "-")
            cells = (token.state.value, owner, ends, used, ",".join(token.scopes), token.name)
            self.stdout.write("\t".join(cells))
