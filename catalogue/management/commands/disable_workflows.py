from typing import Any

from catalogue.actions.workflows import disable_workflows
from catalogue.history import command
from catalogue.management.base import WorkflowSelectionCommand


class Command(WorkflowSelectionCommand):
    help = "Hide workflows of a source from agents and refuse calls."

    def handle(self, *args: Any, **options: Any) -> None:
        changed = disable_workflows(self.selected(options), by=command("disable_workflows"))
        self.stdout.write(f"Workflows disabled: {changed}.")
