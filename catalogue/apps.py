from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Warning, register

from connectors.allowlists import allow_http_tool_hosts, allow_stdio_commands
from connectors.registry import connector_problems


class CatalogueConfig(AppConfig):
    name = "catalogue"

    def ready(self) -> None:
        from catalogue import product_settings

        register(check_connectors)
        settings.CATALOGUE.overrides = product_settings.overrides  # type: ignore[attr-defined]
        allow_stdio_commands(settings.CATALOGUE["stdio_commands"])
        allow_http_tool_hosts(settings.CATALOGUE["http_tool_hosts"])


def check_connectors(**_: Any) -> list[CheckMessage]:
    """Warnings: one package's mistake must not keep the product from starting."""
    return [Warning(problem, id="catalogue.W001") for problem in connector_problems()]
