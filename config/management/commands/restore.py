from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from catalogue.management.base import CatalogueCommand
from config.backup import BackupRefused, is_behind, restore_backup
from config.environment import COMMAND


class Command(CatalogueCommand):
    help = (
        "Restore a backup of the embedded database, or fill an empty PostgreSQL with it. Stop all processes "
        "of the product first."
    )
    makes_database = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="The file that `backup` wrote.")
        parser.add_argument(
            "--force",
            action="store_true",
            help="replace existing data, which is kept beside the restored data",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        source: Path = options["file"]
        report = partial(self.stderr.write, style_func=str)  # Not as an error
        try:
            manifest = restore_backup(source, replace=options["force"], report=report)
        except BackupRefused as error:
            raise CommandError(f"Nothing was changed. {error}") from None
        except OSError as error:
            raise CommandError(f"{error.filename or source}: {error.strerror}.") from None
        self.stdout.write(f"Restored the backup of {manifest.made_at}, made by version {manifest.version}.")
        if is_behind(manifest):
            self.stdout.write(f"Migrate the database before you start the product: {COMMAND} migrate")
