"""`manage.py prune_executions`"""

from typing import Any

from django.core.management.base import BaseCommand

from executions.retention import prune


class Command(BaseCommand):
    help = "Remove now what the retention keeps no longer, which a worker else does every ten minutes."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"Removed: {prune()}.")
