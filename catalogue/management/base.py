"""What all our commands have in common."""

from django.core.management.base import BaseCommand


class CatalogueCommand(BaseCommand):
    """Without Django's system checks: `migrate` and CI run them, and here they cost half a second."""

    requires_system_checks: list[str] = []
