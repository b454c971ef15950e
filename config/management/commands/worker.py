import sys
import warnings
from typing import Any

from django.core.management.base import CommandParser

from catalogue.management.base import CatalogueCommand, whole_number
from config.celery import app


class Command(CatalogueCommand):
    help = "Run a worker, which lists engines and follows runs. Any number of workers share the work."
    serves_metrics = True

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--concurrency",
            type=whole_number(1),
            default=4,
            help="Number of concurrent tasks. Default: %(default)s.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        # Root in a container knows.
        warnings.filterwarnings("ignore", "You're running the worker with superuser privileges")
        # Celery's command line would load modules of 10 MB. Workers need no messages among each other: the
        # database has everything that they need to know.
        quiet: dict[str, Any] = dict.fromkeys(
            ("quiet", "without_gossip", "without_mingle", "without_heartbeat"), True
        )
        worker = app.Worker(pool_cls="threads", concurrency=options["concurrency"], **quiet)
        worker.start()
        sys.exit(worker.exitcode)
