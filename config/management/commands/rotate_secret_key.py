import secrets
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from catalogue.management.base import CatalogueCommand
from catalogue.sources import reencrypt_credentials
from config.private_files import write_secret


class Command(CatalogueCommand):
    help = (
        "Encrypt all stored credentials with the present SECRET_KEY, after which former ones are not needed. "
        "docs/security.md has the steps."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--new",
            action="store_true",
            help="First step where the key is in the data folder: put a new one before it.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["new"]:
            self._make_key()
        else:
            self._reencrypt()

    def _make_key(self) -> None:
        if settings.SECRET_KEY_FILE is None:
            raise CommandError(
                "SECRET_KEY comes from the environment: set it to a new value there, and "
                "SECRET_KEY_FALLBACKS to the present one."
            )
        keys = [secrets.token_urlsafe(50), settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
        write_secret(settings.SECRET_KEY_FILE, "\n".join(keys))
        self.stdout.write("There is a new key. Restart all processes, then call this command without --new.")

    def _reencrypt(self) -> None:
        done, unreadable = reencrypt_credentials()
        self.stdout.write(f"Encrypted with the present SECRET_KEY: the credentials of {done} source(s).")
        if unreadable:
            raise CommandError(
                f"Encrypted with a key that is not known, so enter them again: {', '.join(unreadable)}. "
                "If you still have it, name it in SECRET_KEY_FALLBACKS and call this again."
            )
        if settings.SECRET_KEY_FILE is not None:
            write_secret(settings.SECRET_KEY_FILE, settings.SECRET_KEY)
            self.stdout.write("Removed the former keys from the data folder. Restart all processes.")
        else:
            self.stdout.write("Now remove SECRET_KEY_FALLBACKS and restart all processes.")
