"""`python manage.py quickstart`, which is what `make run` starts."""

import signal
from types import FrameType
from typing import Any

from django.conf import settings

from catalogue.management.base import CatalogueCommand
from config.quickstart import run_everything


class Command(CatalogueCommand):
    help = (
        "Run the web server, the worker, its schedule and an example engine until Ctrl-C. The first start "
        "also makes the database, an admin, a token, and connects the example engine."
    )

    makes_database = False

    def handle(self, *args: Any, **options: Any) -> None:
        # SIGINT too: shells have it ignored by what they start in the background.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        try:
            run_everything(data_dir=settings.DATA_DIR.absolute(), port=settings.ENVIRONMENT.port)
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """A closed terminal and a service manager mean the same as Ctrl-C."""
    raise KeyboardInterrupt
