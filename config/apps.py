"""The product as an app of its own, for what concerns all rooms."""

from importlib import import_module

from django.apps import AppConfig


class ProductConfig(AppConfig):
    name = "config"
    label = "product"
    verbose_name = "Workflow Catalogue"

    def ready(self) -> None:
        """Make ours the current Celery app before any task is sent."""
        import_module("config.celery")
