from typing import Any

from django.core.management import CommandError

from catalogue.curation import enable_workflows
from catalogue.history import command
from catalogue.management.base import WorkflowSelectionCommand


class Command(WorkflowSelectionCommand):
    help = "Let agents see workflows of a source, as far as the filters let them through."

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = self.selected(options)
        if options["all"] and not chosen.exists():
            name = options["source"]
            raise CommandError(f"No workflows of {name} are known. List them first: refresh_sources {name}")
        changed = enable_workflows(chosen, by=command("enable_workflows"))
        self.stdout.write(f"Workflows enabled: {changed}.")
