from typing import Any

from catalogue.management.base import CatalogueCommand
from config.celery import app


class Command(CatalogueCommand):
    help = "Send the schedule to the workers. One process of all does that."

    def handle(self, *args: Any, **options: Any) -> None:
        app.start(["--quiet", "beat", "--pidfile="])
