from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from catalogue.history import command
from catalogue.imports import tools
from catalogue.imports.pipeline import ToolsRefused
from catalogue.management.base import ImportCommand


class Command(ImportCommand):
    help = (
        "Store HTTP tools as a file declares them: one ToolConfig, a list of them, or an object with "
        "`tools`, in JSON or YAML. It is checked as a whole before anything is written."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="JSON or YAML; - reads standard input")
        parser.add_argument(
            "--source",
            metavar="NAME",
            help="the source of the tools, created if necessary; default: their addresses decide",
        )
        parser.add_argument("--hidden", action="store_true", help="hide new tools from agents for now")
        parser.add_argument("--dry-run", action="store_true", help="write nothing, show what would change")

    def handle(self, *args: Any, **options: Any) -> None:
        raw: Any = None
        try:
            raw = tools.read_text(self.read(options["file"], tools.MAX_BYTES))
            asked = tools.read_submission(raw)
            stored = tools.store_tools(
                asked.tools,
                source=options["source"] or asked.source,
                expose=asked.expose and not options["hidden"],
                dry_run=asked.dry_run or options["dry_run"],
                by=command("add_tools"),
            )
        except ToolsRefused as refused:
            lines = [
                ": ".join(
                    filter(None, [tools.name_of(fault, raw), tools.place_of(fault, raw), fault.message])
                )
                for fault in refused.problems
            ]
            raise CommandError("\n".join(["Nothing was stored.", *lines])) from None
        for name in stored.new_sources:
            self.stdout.write(f"Source {name}: new")
        width = max((len(tool.tool_id) for tool in stored.tools), default=0)
        for tool in stored.tools:
            state = "" if tool.exposed else f", not shown to agents: {tool.hidden_because}"
            self.stdout.write(
                f"  {tool.tool_id:<{width}}  {tool.change} ({tool.source}){state} {tool.note}".rstrip()
            )
        for note in stored.notes:
            self.stdout.write(note)
        if stored.dry_run:
            self.stdout.write("Nothing was stored.")
