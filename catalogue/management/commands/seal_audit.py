from typing import Any

from audit.sealing import head, seal
from catalogue.management.base import CatalogueCommand


class Command(CatalogueCommand):
    help = (
        "Seal what was entered into the audit since the last time, as workers do twice a minute, and print "
        "the head of the chain to keep elsewhere."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"Sealed {seal()} entries. Head: {head() or 'none yet'}")
