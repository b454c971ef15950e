from typing import Any

from catalogue.management.base import CatalogueCommand
from executions.retention import prune


class Command(CatalogueCommand):
    help = "Remove data past its retention now; a worker does this every minute."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"Removed: {prune()}.")
