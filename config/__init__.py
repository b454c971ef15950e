"""The wiring of the rooms, and the product as a Django app."""

import atexit
import gc
from importlib import import_module

from django.apps import AppConfig

# At exit, the interpreter searches everything imported for cycles: a third of a second of CPU time.
atexit.register(gc.freeze)


class ProductConfig(AppConfig):
    name = "config"
    label = "product"
    verbose_name = "Workflow Catalogue"

    def ready(self) -> None:
        """Sets the current Celery app before any task is sent."""
        import_module("config.celery")
