"""`manage.py enable_workflows`"""

from typing import Any

from catalogue.curation import enable_workflows
from catalogue.management.workflow_selection import WorkflowSelectionCommand


class Command(WorkflowSelectionCommand):
    help = "Let agents see workflows of a source, as far as the filters let them through."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"Workflows enabled: {enable_workflows(self.selected(options))}.")
