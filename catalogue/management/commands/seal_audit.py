from typing import Any

from audit.sealing import head, seal
from catalogue.management.base import CatalogueCommand


class Command(CatalogueCommand):
    help = (
        "Seal the new entries of the audit, as workers do twice a minute, and print the head of the chain "
        "to store elsewhere."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"Sealed {seal()} entries. Head: {head() or 'none yet'}")
