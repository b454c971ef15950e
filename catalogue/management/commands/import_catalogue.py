"""`manage.py import_catalogue`"""

import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catalogue.configuration.document import LIMITS, CatalogueFile, ConfigurationRefused
from catalogue.configuration.importing import ImportRequest, import_catalogue, plan_import
from catalogue.configuration.plan import Plan
from catalogue.history import command
from catalogue.management.base import CatalogueCommand

DIFFERS = 2


def variable_of(source: str, secret: str) -> str:
    """`CATALOGUE_SECRET_ORDERS_API_KEY`"""
    return "CATALOGUE_SECRET_" + re.sub(r"[^A-Z0-9]+", "_", f"{source}_{secret}".upper())


class Command(CatalogueCommand):
    help = (
        "Make the catalogue what a file of export_catalogue says: all of it, or nothing. Secrets come from "
        "environment variables CATALOGUE_SECRET_<SOURCE>_<SETTING>, or stay as they are stored."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="- for standard input")
        parser.add_argument(
            "--plan",
            "--check",
            action="store_true",
            dest="plan",
            help="print what would change and write nothing; exits with 2 if anything differs, else with 0",
        )
        parser.add_argument(
            "--prune", action="store_true", help="remove what the sections of the file do not have"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            plan = self._carry_out(_read(options["file"]), options)
        except ConfigurationRefused as refused:
            raise CommandError("\n".join(["Nothing was changed.", *refused.reasons])) from None
        self.stdout.write(str(plan))
        if options["plan"] and plan:
            sys.exit(DIFFERS)

    def _carry_out(self, content: bytes, options: dict[str, Any]) -> Plan:
        file = CatalogueFile.read(content)
        request = ImportRequest(
            file=file, secrets=_secrets_for(file), prune=options["prune"], tell_where=_tell_where
        )
        return (plan_import if options["plan"] else import_catalogue)(request, by=command("import_catalogue"))


def _tell_where(source: str, secret: str) -> str:
    return f"set the environment variable {variable_of(source, secret)}"


def _read(path: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read(LIMITS.bytes + 1)
        with Path(path).open("rb") as file:
            return file.read(LIMITS.bytes + 1)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None


def _secrets_for(file: CatalogueFile) -> dict[str, dict[str, str]]:
    """Those of the file's sources that the environment has."""
    found: dict[str, dict[str, str]] = {}
    for source, secret in _named_secrets(file):
        if value := os.environ.get(variable_of(source, secret)):
            found.setdefault(source, {})[secret] = value
    return found


def _named_secrets(file: CatalogueFile) -> Iterator[tuple[str, str]]:
    sources = file.at(("sources",))
    for name, source in sources.items() if isinstance(sources, dict) else ():
        named = source.get("secrets") if isinstance(source, dict) else None
        for secret in named if isinstance(named, list) else ():
            if isinstance(secret, str):
                yield name, secret
