import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError

from catalogue.imports.pipeline import ImportRefused
from catalogue.management.base import CatalogueCommand
from connectors.errors import Misconfigured


class ImportCommand(CatalogueCommand):
    refused = "Nothing was imported."

    def read(self, path: str, most_bytes: int) -> bytes:
        """Reads one byte over the limit, so that the parser refuses larger input; `-` is standard input."""
        try:
            if path == "-":
                return sys.stdin.buffer.read(most_bytes + 1)
            with open(path, "rb") as file:
                return file.read(most_bytes + 1)
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}.") from None

    @contextmanager
    def refusals_as_errors(self) -> Iterator[None]:
        try:
            yield
        except (ImportRefused, Misconfigured) as error:
            raise CommandError(f"{self.refused}\n{error}") from None
