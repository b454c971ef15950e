from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.migrations.loader import MigrationLoader

from connectors.network.policy import allow_http_tool_hosts, allow_stdio_commands, use_outbound_proxy
from connectors.registry import connector_problems


class CatalogueConfig(AppConfig):
    name = "catalogue"

    def ready(self) -> None:
        from catalogue import audit, product_settings
        from catalogue.database import close_with_thread

        register(check_connectors)
        register(check_squashed_migrations, Tags.database)
        connection_created.connect(close_with_thread)
        audit.follow_history()
        settings.CATALOGUE.overrides = product_settings.remembered  # type: ignore[attr-defined]
        allow_stdio_commands(settings.CATALOGUE.stdio_commands)
        allow_http_tool_hosts(settings.CATALOGUE.http_tool_hosts)
        use_outbound_proxy(settings.CATALOGUE.outbound_proxy.get_secret_value(), settings.CATALOGUE.no_proxy)


def check_connectors(**_: Any) -> list[CheckMessage]:
    """Warnings, because an error in one package must not prevent the product from starting."""
    return [Warning(problem, id="catalogue.W001") for problem in connector_problems()]


def check_squashed_migrations(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Runs before `migrate`, as Django runs all that are tagged so."""
    from catalogue.database import describe_partly_migrated

    loaders = (MigrationLoader(connections[name]) for name in databases or ())
    problems = filter(None, map(describe_partly_migrated, loaders))
    return [Error(problem, id="catalogue.E001") for problem in problems]
