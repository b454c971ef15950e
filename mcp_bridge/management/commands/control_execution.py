from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

from executions.control import Action
from identity.management import add_toolset_option, local_access
from mcp_bridge.management.commands import call_tool


class Command(call_tool.Command):
    help = (
        "Retry an execution of any caller, wait for the new one and print its result; or pause, resume or "
        "terminate one. Exits with 1 if that is refused, or the new execution fails."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("execution", metavar="ID")
        parser.add_argument("action", choices=list(Action))
        add_toolset_option(parser, what="retry it through this toolset")

    def handle(self, *args: Any, **options: Any) -> None:
        access = local_access(options)
        operator = replace(access, caller=replace(access.caller, sees_everything=True))
        arguments = {"execution_id": options["execution"], "action": str(options["action"])}
        self.call_and_print("control_execution", arguments, operator)
