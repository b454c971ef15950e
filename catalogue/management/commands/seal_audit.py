from argparse import ArgumentParser
from typing import Any

from audit.sealing import adopt, head, seal
from catalogue.management.base import CatalogueCommand


class Command(CatalogueCommand):
    help = (
        "Seal the new entries of the audit, as workers do twice a minute, and print the head of the chain "
        "to store elsewhere."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--adopt",
            action="store_true",
            help="seal what has no proof too, such as what an older version wrote, and record what it is",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        sealed = adopt(by="manage.py seal_audit") if options["adopt"] else seal()
        self.stdout.write(f"Sealed {sealed} entries. Head: {head() or 'none yet'}")
