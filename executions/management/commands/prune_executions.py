from typing import Any

from catalogue.management.base import CatalogueCommand
from executions.retention import prune


class Command(CatalogueCommand):
    help = "Remove what is past its retention now; a worker does so every minute."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"Removed: {prune()}.")
