from typing import Any

from catalogue.management.base import CatalogueCommand
from catalogue.naming import counted
from executions.statistics import recount


class Command(CatalogueCommand):
    help = (
        "Recount the statistics from the executions. Hours from which the retention has "
        "removed executions stay as they are."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        found = recount()
        if found.since is None:
            self.stdout.write("Nothing to count: no execution has ended.")
            return
        self.stdout.write(
            f"Counted {counted(found.hours, 'hour')} since {found.since:%Y-%m-%d %H:%M} UTC; "
            f"{found.differed} differed and were corrected."
        )
