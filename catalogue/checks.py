"""What `manage.py check` says of the catalogue."""

from typing import Any

from django.core.checks import CheckMessage, Warning

from connectors.registry import connector_problems


def check_connectors(**_: Any) -> list[CheckMessage]:
    """Warnings: one package's mistake must not keep the product from starting."""
    return [Warning(problem, id="catalogue.W001") for problem in connector_problems()]
