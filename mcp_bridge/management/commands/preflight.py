import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catalogue.management.base import CatalogueCommand
from executions.preflight import PlannedCall, check_calls
from identity.management import add_toolset_option, local_access

FORM = 'It must be a JSON list such as [{"tool": "get_order", "arguments": {"order_id": "A-1"}}].'


class Command(CatalogueCommand):
    help = (
        "Say which tools could be called now, and why others could not, before a job relies on them. Starts "
        "nothing. Exits with 1 if one could not."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", metavar="TOOL", nargs="*", help="tool names; arguments are not checked")
        parser.add_argument(
            "--calls", metavar="FILE", help="a JSON list of {tool, arguments?, schema_hash?}; - is the input"
        )
        parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
        add_toolset_option(parser, what="call them through this toolset")

    def handle(self, *args: Any, **options: Any) -> None:
        calls = [PlannedCall(name) for name in options["names"]]
        if options["calls"]:
            calls += _read(options["calls"])
        if not calls:
            raise CommandError("Name at least one tool, or give --calls.")
        verdicts = check_calls(calls, local_access(options).caller, explains=True)
        if options["json"]:
            self.stdout.write(json.dumps([verdict.document for verdict in verdicts], indent=2))
        else:
            for verdict in verdicts:
                self.stdout.write(f"{verdict.tool}: {'not ready' if verdict.problems else 'ready'}")
                for code, message in verdict.problems:
                    self.stdout.write(f"  {code}: {message}")
        if any(verdict.problems for verdict in verdicts):
            sys.exit(1)


def _read(file: str) -> list[PlannedCall]:
    """Raises CommandError."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"{file} cannot be read: {error}") from None
    if not isinstance(found, list) or not all(map(_is_call, found)):
        raise CommandError(f"{file} is not a list of calls. {FORM}")
    return [PlannedCall(**one) for one in found]


def _is_call(one: Any) -> bool:
    types = {"tool": str, "arguments": dict | None, "schema_hash": str}
    return (
        isinstance(one, dict)
        and "tool" in one
        and one.keys() <= types.keys()
        and all(isinstance(value, types[name]) for name, value in one.items())
    )
