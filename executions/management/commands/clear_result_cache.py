from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from catalogue.management.base import CatalogueCommand
from catalogue.models import Workflow
from catalogue.naming import counted
from executions.result_cache import clear_results


class Command(CatalogueCommand):
    help = "Clear the cached results of one workflow or of all, so that the next calls run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("workflow", nargs="?", default="", help="a workflow's tool name (default: all)")

    def handle(self, *args: Any, **options: Any) -> None:
        workflows = None
        if name := options["workflow"]:
            workflows = set(Workflow.objects.filter(tool_name=name).values_list("pk", flat=True))
            if not workflows:
                raise CommandError(f"No workflow has the tool name {name}.")
        self.stdout.write(f"Cleared: {counted(clear_results(workflows), 'cached result')}.")
