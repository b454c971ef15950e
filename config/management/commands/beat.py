from typing import Any

from catalogue.management.base import CatalogueCommand
from config.celery import app


class Command(CatalogueCommand):
    help = "Run the scheduler, which sends due tasks to the workers. Run exactly one."
    serves_metrics = True

    def handle(self, *args: Any, **options: Any) -> None:
        # Celery's command line would load modules of 10 MB.
        app.Beat(quiet=True).run()
