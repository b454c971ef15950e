import json
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError

from catalogue.exposure import Visibility
from catalogue.history import command
from catalogue.imports import openapi
from catalogue.management.base import (
    ImportCommand,
    add_field_options,
    add_secret_options,
    json_object,
    read_secrets,
)
from catalogue.naming import listed
from catalogue.reconciliation import Change
from catalogue.rest.imports import NewOpenApiImportSerializer, OpenApiImportSerializer
from connectors.http_tools.openapi.document import MAX_BYTES

OPTIONS = ("source", "base_url", "only", "tags", "deprecated", "expose", "prune", "dry_run")
SHOWN = 3  # Entries per group, unless -v 2


class Command(ImportCommand):
    help = (
        "Import an OpenAPI 3 or Swagger 2.0 document (JSON or YAML): each chosen operation becomes an HTTP "
        "tool, each that cannot is refused with its reason. Exits with 1 if there is no tool."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="the document; everything in one file")
        add_field_options(parser, NewOpenApiImportSerializer(), *OPTIONS, tags="tag")
        told = "further settings of a new source, such as username"
        parser.add_argument("--config", type=json_object, default={}, metavar="JSON", help=told)
        add_secret_options(parser)
        parser.add_argument("--json", action="store_true", help="print the whole outcome as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        request = openapi.OpenApiImportRequest(
            content=self.read(options["file"], MAX_BYTES),
            settings=options["config"],
            secrets=read_secrets(options),
            by=command("import_openapi"),
            **{name: options[name] for name in OPTIONS},
        )
        with self.refusals_as_errors():
            outcome = openapi.import_document(request)
        if options["json"]:
            self.stdout.write(json.dumps(OpenApiImportSerializer(outcome).data, indent=2))
        else:
            for line in report_lines(outcome, all_names=options["verbosity"] > 1):
                self.stdout.write(line)
        if not outcome.tools:
            raise CommandError("Nothing was imported.")


def report_lines(outcome: openapi.OpenApiImport, *, all_names: bool) -> Iterator[str]:
    """`all_names` shows every tool and refusal instead of the first few."""
    shown = None if all_names else SHOWN
    # An import without tools adds no source.
    known = "there already" if outcome.tools or outcome.removed else "no tool for it"
    state = "new" if outcome.is_new else known
    way = outcome.target.authentication["authentication"]
    yield f"Source {outcome.source}: {state}, {outcome.target.base_url}, authentication {way}"
    yield from _tools(outcome, shown)
    yield from _groups(outcome, shown)
    if outcome.deprecated:
        yield f"Deprecated, and so not imported without --deprecated: {outcome.deprecated}"
    if outcome.not_chosen:
        yield f"Not chosen: {outcome.not_chosen}"
    if outcome.tools:
        yield f"In tools/list: about {outcome.characters:,} characters, {outcome.tokens:,} tokens"
    yield from outcome.notes
    added = (tool.stored for tool in outcome.tools if tool.stored.change is Change.ADDED)
    if any(tool.hidden_because == Visibility.DISABLED for tool in added):
        yield "Agents see the added tools once a curator enables them (enable_workflows, or --expose)."


def _tools(outcome: openapi.OpenApiImport, shown: int | None) -> Iterator[str]:
    yield f"{'Tools that would be' if outcome.dry_run else 'Tools'}: {outcome.counts or 'none'}"
    groups = openapi.tools_by_tag(outcome)
    width = max(map(len, groups), default=0)
    for tag, names in groups.items():
        yield f"  {tag:<{width}}  {len(names):>4}  {listed(names, shown)}"
    for change, names in openapi.tools_by_change(outcome).items():
        if change is not Change.ADDED:
            yield f"  {change}: {listed(names, shown)}"
    for tool in outcome.tools:
        if tool.stored.warning:
            yield f"  {tool.stored.tool_id} may try to command agents: {tool.stored.warning}"


def _groups(outcome: openapi.OpenApiImport, shown: int | None) -> Iterator[str]:
    if outcome.refused:
        yield f"Refused: {len(outcome.refused)}"
    for reason, refused in openapi.group_refusals(outcome.refused):
        calls = ((one, f" ({one.operation_id})" if one.operation_id else "") for one in refused)
        lines = [f"{one.method} {one.path}{name} at {one.pointer}" for one, name in calls]
        yield from _group(reason, lines, shown)
    if groups := openapi.group_notes(outcome):
        yield f"Left out or read differently: {sum(len(tools) for _, tools in groups)}"
    for note, tools in groups[:shown]:
        yield from _group(note, [f"{one.method} {one.path} ({one.stored.name})" for one in tools], shown)
    if more := len(groups) - len(groups[:shown]):
        yield f"  and {more} more of other kinds (-v 2 shows all)"


def _group(what: str, operations: list[str], shown: int | None) -> Iterator[str]:
    yield f"  {len(operations)} x {what}"
    yield from (f"      {operation}" for operation in operations[:shown])
    if more := len(operations) - len(operations[:shown]):
        yield f"      and {more} more (-v 2 shows all)"
