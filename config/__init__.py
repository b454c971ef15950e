"""The wiring of the rooms, and the product as a Django app of its own."""

import atexit
import gc
from importlib import import_module

from django.apps import AppConfig

# At its end the interpreter looks for cycles among all that was imported: a third of a second of CPU.
atexit.register(gc.freeze)


class ProductConfig(AppConfig):
    name = "config"
    label = "product"
    verbose_name = "Workflow Catalogue"

    def ready(self) -> None:
        """Make ours the current Celery app before any task is sent."""
        import_module("config.celery")
