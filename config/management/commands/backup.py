from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from catalogue.management.base import CatalogueCommand
from config.backup import BackupRefused, make_backup


class Command(CatalogueCommand):
    help = "Back up the embedded database and its key to one file, while everything runs."
    makes_database = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="The tar file to write, which only its owner can read.")
        parser.add_argument("--force", action="store_true", help="replace an existing file")

    def handle(self, *args: Any, **options: Any) -> None:
        target: Path = options["file"]
        report = partial(self.stderr.write, style_func=str)  # Not as an error
        try:
            make_backup(target, replace=options["force"], report=report)
        except BackupRefused as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"Cannot write {target}: {error.strerror}.") from None
        self.stdout.write(f"Backed up to {target}, {target.stat().st_size:,} bytes.")
        if settings.SECRET_KEY_FILE is None:
            self.stderr.write(
                "It does not contain SECRET_KEY, which the environment sets. Back that up as well."
            )
        else:
            self.stderr.write(
                "It contains the key to stored credentials. Protect it as you protect the credentials."
            )
