from typing import Any

from catalogue.curation import enable_workflows
from catalogue.history import command
from catalogue.management.base import WorkflowSelectionCommand


class Command(WorkflowSelectionCommand):
    help = "Let agents see workflows of a source, as far as the filters let them through."

    def handle(self, *args: Any, **options: Any) -> None:
        changed = enable_workflows(self.selected(options), by=command("enable_workflows"))
        self.stdout.write(f"Workflows enabled: {changed}.")
