from typing import Any

from catalogue.management.base import CatalogueCommand
from executions.statistics import recount


class Command(CatalogueCommand):
    help = (
        "Recount the statistics from the executions. Hours from which the retention has "
        "removed executions stay as they are."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        counted = recount()
        if counted.since is None:
            self.stdout.write("Nothing to count: no execution has ended.")
            return
        self.stdout.write(
            f"Counted {counted.hours} hours since {counted.since:%Y-%m-%d %H:%M} UTC; "
            f"{counted.differed} differed and were corrected."
        )
