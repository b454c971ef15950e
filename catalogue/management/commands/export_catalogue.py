from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catalogue.audit import record_export
from catalogue.configuration import SECTIONS, export_catalogue
from catalogue.history import command
from catalogue.management.base import CatalogueCommand


class Command(CatalogueCommand):
    help = (
        "Write settings, groups, sources, exposure rules, toolsets and the curation of workflows as YAML, "
        "without secrets. import_catalogue reads it. The same catalogue gives the same text."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", nargs="?", help="default: standard output")
        parser.add_argument(
            "--section",
            action="append",
            choices=list(SECTIONS),
            dest="sections",
            help="only this one; may be repeated. `listed` is what the engines say, which lets a catalogue "
            "that has never seen them serve the same tools",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        sections = options["sections"] or list(SECTIONS)
        record_export(command("export_catalogue"), "configuration", sections=sections)
        text = export_catalogue(sections)
        if not (file := options["file"]):
            self.stdout.write(text, ending="")
            return
        try:
            Path(file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror}.") from None
