import secrets
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from audit.models import Kind, record
from audit.sealing import renew_proofs, seal
from catalogue.actions.sources import reencrypt_credentials
from catalogue.management.base import CatalogueCommand
from catalogue.naming import counted
from config.private_files import write_secret
from executions.subscriptions import reencrypt_targets


def _write_keys(path: Path, keys: list[str]) -> None:
    try:
        write_secret(path, "\n".join(keys))
    except OSError as error:
        raise CommandError(
            f"{path} cannot be written and stays as it is: {error.strerror}. Run this command again then."
        ) from None


class Command(CatalogueCommand):
    help = (
        "Encrypt all stored credentials with the current SECRET_KEY, so that former keys are "
        "no longer needed. docs/security.md describes the steps."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--new",
            action="store_true",
            help="first step if the key is in the data folder: add a new key in front of it",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["new"]:
            self._reencrypt()
            return
        if settings.SECRET_KEY_FILE is None:
            raise CommandError(
                "SECRET_KEY comes from the environment. Set it to a new value there, and set "
                "SECRET_KEY_FALLBACKS to the current one."
            )
        keys = [secrets.token_urlsafe(50), settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
        _write_keys(settings.SECRET_KEY_FILE, keys)
        self.stdout.write("Created a new key. Restart all processes, then run this command without --new.")

    def _reencrypt(self) -> None:
        reencrypt_targets()
        done, unreadable = reencrypt_credentials()
        told = {"actor": "command", "actor_name": "manage.py rotate_secret_key", "door": "command"}
        record(Kind.SETTING, "secret_key.rotated", **told, reencrypted=done, unreadable=len(unreadable))
        renew_proofs()
        # A seal with the present key covers everything that the former key has sealed.
        seal()
        self.stdout.write(f"Encrypted {counted(done, 'stored secret')} with the current SECRET_KEY.")
        if unreadable:
            raise CommandError(
                f"The secrets of these are encrypted with an unknown key: {', '.join(unreadable)}. If you "
                "still have the key, add it to SECRET_KEY_FALLBACKS and run this command again. Otherwise, "
                "enter the credentials of a source again, and reset a second factor."
            )
        if settings.SECRET_KEY_FILE is not None:
            _write_keys(settings.SECRET_KEY_FILE, [settings.SECRET_KEY])
            self.stdout.write("Removed the former keys from the data folder. Restart all processes.")
        else:
            self.stdout.write("Now remove SECRET_KEY_FALLBACKS and restart all processes.")
