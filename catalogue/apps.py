from django.apps import AppConfig
from django.conf import settings
from django.core.checks import register

from catalogue.checks import check_connectors
from connectors.allowlists import allow_http_tool_hosts, allow_stdio_commands


class CatalogueConfig(AppConfig):
    name = "catalogue"

    def ready(self) -> None:
        from catalogue import product_settings

        register(check_connectors)
        settings.CATALOGUE.overrides = product_settings.overrides  # type: ignore[attr-defined]
        allow_stdio_commands(settings.CATALOGUE["stdio_commands"])
        allow_http_tool_hosts(settings.CATALOGUE["http_tool_hosts"])
