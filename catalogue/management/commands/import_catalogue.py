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
from catalogue.discovery import RefreshRefused, refresh_source
from catalogue.history import command
from catalogue.http_tools.configs import KIND as DECLARED_HERE
from catalogue.management.base import CatalogueCommand
from catalogue.models import DiscoveryRun, Source

DIFFERS = 2
BY = command("import_catalogue")


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
            "--refresh",
            action="store_true",
            help="first add and change the sources of the file alone and list their workflows, then import "
            "the rest: for a product that does not know them yet",
        )
        parser.add_argument(
            "--prune", action="store_true", help="remove what the sections of the file do not have"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["refresh"] and options["plan"]:
            raise CommandError("--plan writes nothing, and a listing does: leave one of them out.")
        content = _read(options["file"])
        try:
            if options["refresh"]:
                self._list_sources(content)
            plan = self._carry_out(content, options)
        except ConfigurationRefused as refused:
            kept = "Nothing was changed."
            if options["refresh"]:
                kept = "Nothing was changed, except that the sources may be new or changed, and were listed."
            raise CommandError("\n".join([kept, *refused.reasons])) from None
        self.stdout.write(str(plan))
        if options["plan"] and plan:
            sys.exit(DIFFERS)

    def _list_sources(self, content: bytes) -> None:
        """As the file has them; an engine that does not answer is told, as the rest may not need it."""
        file = CatalogueFile.read(content)
        request = ImportRequest(
            file=file, secrets=_secrets_for(file), tell_where=_tell_where, sources_only=True
        )
        if plan := import_catalogue(request, by=BY):
            self.stdout.write(str(plan))
        named = {name for section in ("sources", "workflows", "listed") for name in file.mapping((section,))}
        listing = Source.objects.filter(name__in=named, enabled=True).exclude(kind=DECLARED_HERE)
        for source in listing.order_by("name"):
            try:
                run = refresh_source(source, waits=True)
            except RefreshRefused as refused:
                self.stderr.write(str(refused))
                continue
            if run.outcome == DiscoveryRun.Outcome.SUCCEEDED:
                self.stdout.write(f"{source.name}: {run.found} workflows listed")
            else:
                self.stderr.write(f"{source.name}: {run.error}")

    def _carry_out(self, content: bytes, options: dict[str, Any]) -> Plan:
        file = CatalogueFile.read(content)
        request = ImportRequest(
            file=file, secrets=_secrets_for(file), prune=options["prune"], tell_where=_tell_where
        )
        return (plan_import if options["plan"] else import_catalogue)(request, by=BY)


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
