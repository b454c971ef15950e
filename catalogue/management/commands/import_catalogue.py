import os
import re
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from catalogue.configuration import LIMITS, CatalogueFile
from catalogue.discovery import RefreshRefused, refresh_source
from catalogue.history import command
from catalogue.http_tools import KIND as DECLARED_HERE
from catalogue.imports.configuration import CatalogueImportRequest, import_catalogue
from catalogue.management.base import ImportCommand
from catalogue.models import DiscoveryRun, Source
from catalogue.naming import counted

DIFFERS = 2


def variable_of(source: str, secret: str) -> str:
    """`CATALOGUE_SECRET_ORDERS_API_KEY`"""
    return "CATALOGUE_SECRET_" + re.sub(r"[^A-Z0-9]+", "_", f"{source}_{secret}".upper())


class Command(ImportCommand):
    help = (
        "Make the catalogue match a file of export_catalogue: all of it, or nothing. Secrets come from "
        "environment variables CATALOGUE_SECRET_<SOURCE>_<SETTING>, or the stored ones are kept."
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
            "--prune", action="store_true", help="remove objects that are not in the file's sections"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["refresh"] and options["plan"]:
            raise CommandError("--plan and --refresh exclude each other: a listing writes to the catalogue.")
        content = self.read(options["file"], LIMITS.bytes)
        self.refused = "Nothing was changed."
        with self.refusals_as_errors():
            if options["refresh"]:
                self.refused = (
                    "Nothing was changed, except that sources may have been added, changed and listed."
                )
                self._list_sources(content)
            plan = import_catalogue(_request(content, prune=options["prune"], dry_run=options["plan"]))
        self.stdout.write(str(plan))
        if options["plan"] and plan:
            sys.exit(DIFFERS)

    def _list_sources(self, content: bytes) -> None:
        """Reports engines that do not answer; the rest of the import may not need them."""
        file = CatalogueFile.read(content)
        if plan := import_catalogue(_request(content, sources_only=True)):
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
                self.stdout.write(f"{source.name}: {counted(run.found, 'workflow')} listed")
            else:
                self.stderr.write(f"{source.name}: {run.error}")


def _request(content: bytes, **options: Any) -> CatalogueImportRequest:
    file = CatalogueFile.read(content)
    return CatalogueImportRequest(
        file=file,
        secrets=_secrets_for(file),
        secret_hint=lambda source, secret: f"set the environment variable {variable_of(source, secret)}",
        by=command("import_catalogue"),
        **options,
    )


def _secrets_for(file: CatalogueFile) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    sources = file.at(("sources",))
    for name, source in sources.items() if isinstance(sources, dict) else ():
        named = source.get("secrets") if isinstance(source, dict) else None
        for secret in named if isinstance(named, list) else ():
            if isinstance(secret, str) and (value := os.environ.get(variable_of(name, secret))):
                found.setdefault(name, {})[secret] = value
    return found
