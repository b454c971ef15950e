import os
from argparse import ArgumentParser
from typing import Any

from catalogue.history import command
from catalogue.imports.temporal import TemporalImportRequest, import_file
from catalogue.management.base import ImportCommand, add_field_options, add_secret_options, read_secrets
from catalogue.rest.imports import NewImportSerializer
from connectors.temporal.config import read_file


class Command(ImportCommand):
    help = (
        "Import a YAML file that declares a Temporal service and its workflows. It is checked as a whole "
        "before anything is written; workflows of earlier files stay."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="ends in .yaml or .yml")
        add_field_options(parser, NewImportSerializer(), "source", "dry_run", "prune", "expose_new")
        parser.add_argument(
            "--by-path",
            action="store_true",
            help="read the file again at every refresh, instead of storing its present content",
        )
        add_secret_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        path = os.path.abspath(options["file"])
        with self.refusals_as_errors():
            outcome = import_file(
                TemporalImportRequest(
                    content=read_file(path),
                    source=options["source"],
                    path=path if options["by_path"] else "",
                    secrets=read_secrets(options),
                    prune=options["prune"],
                    expose=options["expose_new"],
                    dry_run=options["dry_run"],
                    by=command("import_temporal"),
                )
            )
        state = "new" if outcome.is_new else ", ".join(outcome.settings) or "unchanged"
        self.stdout.write(f"Source {outcome.source}: {state}")
        width = max(map(len, outcome.changes), default=0)
        for name, change in outcome.changes.items():
            self.stdout.write(f"  {name:<{width}}  {change}")
        self.stdout.write(f"{'Would be' if outcome.dry_run else 'Workflows'}: {outcome.counts or 'none'}")
        for note in outcome.notes:
            self.stdout.write(note)
        if outcome.health is not None:
            self.stdout.write(outcome.health.message)
