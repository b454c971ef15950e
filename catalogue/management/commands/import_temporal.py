import os
from argparse import ArgumentParser
from typing import Any

from catalogue.history import command
from catalogue.imports.temporal import DEFAULT_NAME, TemporalImportRequest, import_file
from catalogue.management.base import ImportCommand, add_secret_options, read_secrets
from connectors.temporal.config import read_file


class Command(ImportCommand):
    help = (
        "Import a YAML file that declares a Temporal service and its workflows. It is checked as a whole "
        "before anything is written; workflows of earlier files stay."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="ends in .yaml or .yml")
        parser.add_argument(
            "--source",
            default=DEFAULT_NAME,
            metavar="NAME",
            help=f"created if need be; {DEFAULT_NAME} if left out",
        )
        parser.add_argument("--dry-run", action="store_true", help="write nothing, show what would change")
        parser.add_argument("--prune", action="store_true", help="remove workflows that are not in the file")
        parser.add_argument(
            "--expose-new", action="store_true", help="of a new source: enable its workflows at once"
        )
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
