import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from mcp_types import LATEST_PROTOCOL_VERSION, CallToolResult, ContentBlock

from catalogue.management.base import CatalogueCommand
from connectors.background import run_in_background_loop
from executions.models import Execution
from executions.refusals import StartRefused
from identity.management import add_toolset_option, local_access
from identity.tokens import Access
from mcp_bridge.builtin_tools import call_tool
from mcp_bridge.calls import ProgressNotifications, ToolCall, in_words
from mcp_bridge.content import describe, is_note, text_of


class Command(CatalogueCommand):
    help = "Call a tool as an agent would and print its result. Exits with 1 if the call fails."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument(
            "arguments", metavar="JSON", nargs="?", default="{}", help="the arguments, a JSON object"
        )
        add_toolset_option(parser, what="call it through this toolset")

    def handle(self, *args: Any, **options: Any) -> None:
        self.call_and_print(options["name"], _arguments(options["arguments"]), local_access(options))

    def call_and_print(self, name: str, arguments: dict[str, Any], access: Access) -> None:
        try:
            result = run_in_background_loop(_call(name, arguments, access, self._report_progress))
        except StartRefused as error:
            raise CommandError(in_words(error, Execution.Door.COMMAND)) from None
        for note in filter(is_note, result.content):
            self.stderr.write(_in_words(note))
        result.content = [block for block in result.content if not is_note(block)]
        if result.is_error:
            raise CommandError("\n".join(map(_in_words, result.content)))
        self.stdout.write(_readable(result))
        if result.structured_content is not None:
            # Standard output may be a pipe that expects the value alone.
            for block in result.content:
                if text_of(block) is None:
                    self.stderr.write(_in_words(block))

    async def _report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        if sys.stderr.isatty():
            self.stderr.write(f"{message or ''} {progress:.0f}{' %' if total else ''}".strip())


def _readable(result: CallToolResult) -> str:
    """Indented, unlike the text for models."""
    value = result.structured_content
    if value is None or isinstance(value, str):
        return "\n".join(map(_in_words, result.content))
    return json.dumps(value, ensure_ascii=False, indent=2)


def _in_words(block: ContentBlock) -> str:
    text = text_of(block)
    return f"[{describe(block)}]" if text is None else text


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"The arguments are not valid JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise CommandError("The arguments must be a JSON object.")
    return arguments


async def _call(name: str, arguments: dict[str, Any], access: Access, report: Any) -> CallToolResult:
    call = ToolCall(
        access=access,
        protocol_version=LATEST_PROTOCOL_VERSION,
        door=Execution.Door.COMMAND,
        progress=ProgressNotifications(report),
        stays_for_progress=True,
    )
    answer = await call_tool(call, name, arguments)
    assert isinstance(answer, CallToolResult), "this call takes no tasks"
    return answer
