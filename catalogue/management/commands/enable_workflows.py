from argparse import ArgumentParser
from typing import Any

from django.core.management import CommandError

from catalogue.actions.workflows import enable_workflows
from catalogue.history import command
from catalogue.management.base import WorkflowSelectionCommand, add_consent_option, ask_for_consent


class Command(WorkflowSelectionCommand):
    help = "Let agents see workflows of a source, as far as the exposure rules let them through."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add_consent_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = self.selected(options)
        if options["all"] and not chosen.exists():
            name = options["source"]
            raise CommandError(f"No workflows of {name} are known. List them first: refresh_sources {name}")
        warned = chosen.filter(enabled=False).exclude(warning="").values_list("tool_name", "warning")
        if told := [f"{name} may try to command agents: {warning}" for name, warning in warned]:
            self.stdout.write("\n".join(told))
            ask_for_consent("Enable them all?", options)
        changed = enable_workflows(chosen, by=command("enable_workflows"))
        self.stdout.write(f"Workflows enabled: {changed}.")
