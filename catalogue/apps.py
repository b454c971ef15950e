from django.apps import AppConfig
from django.conf import settings
from django.core.checks import register

from catalogue.checks import check_connectors
from connectors.operator import allow_http_tool_hosts, allow_stdio_commands


class CatalogueConfig(AppConfig):
    name = "catalogue"

    def ready(self) -> None:
        register(check_connectors)
        allow_stdio_commands(settings.CATALOGUE["stdio_commands"])
        allow_http_tool_hosts(settings.CATALOGUE["http_tool_hosts"])
