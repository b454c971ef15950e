"""What all our commands have in common."""

from typing import Any

from django.core.management.base import BaseCommand

from catalogue.embedded_database import make_embedded_database


class CatalogueCommand(BaseCommand):
    """Without Django's system checks: `migrate` and CI run them, and here they cost half a second.

    An embedded database that there is not yet is made, so that any of them may be the first.
    """

    requires_system_checks: list[str] = []
    makes_database = True

    def execute(self, *args: Any, **options: Any) -> str | None:
        if self.makes_database:
            make_embedded_database()
        return super().execute(*args, **options)
