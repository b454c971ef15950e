"""What `enable_workflows` and `disable_workflows` have in common: which workflows are meant."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db.models import QuerySet

from catalogue.curation import UnknownWorkflows, choose_workflows
from catalogue.management.base import CatalogueCommand
from catalogue.models import Source, Workflow


class WorkflowSelectionCommand(CatalogueCommand):
    """A command on some or all workflows of one source."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--source", required=True, metavar="NAME")
        parser.add_argument("--all", action="store_true", help="every workflow of the source")
        parser.add_argument(
            "names", nargs="*", metavar="NAME", help="tool names, workflow names or engine's ids"
        )

    def selected(self, options: dict[str, Any]) -> QuerySet[Workflow]:
        """Raises CommandError for a source or a name that does not exist; nothing is changed then."""
        if options["all"] == bool(options["names"]):
            raise CommandError("Give either names or --all.")
        source = Source.objects.filter(name=options["source"]).first()
        if source is None:
            raise CommandError(f"No such source: {options['source']}")
        try:
            return choose_workflows(source, None if options["all"] else options["names"])
        except UnknownWorkflows as error:
            raise CommandError(str(error)) from None
