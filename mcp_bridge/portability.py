"""The portable mode of toolsets: tools that every model provider accepts, and their calls."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mcp_types import Tool

from access.callers import Bounds
from catalogue import exposure
from catalogue.models import Toolset
from catalogue.naming import find_similar_names
from catalogue.portable_schemas import find_refusals, limit_for_tools, make_portable
from catalogue.schemas import ArgumentProblem
from executions.refusals import InvalidArguments, UnknownTool
from identity.tokens import Access

Arguments = dict[str, Any]


@dataclass(frozen=True)
class PortableView:
    entry: exposure.ExposedToolset

    def shown_name(self, name: str) -> str:
        return self.entry.aliases.get(name, name)

    def meant_name(self, called: str) -> str:
        """The tool's own name, which callers may also use."""
        return called if called in self.entry.workflows else self._names.get(called, called)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return {alias: name for name, alias in self.entry.aliases.items()}

    def show(self, tool: Tool) -> Tool:
        """Removes the output schema, which has the keys of the unchanged result."""
        shown = {
            "name": self.shown_name(tool.name),
            "input_schema": make_portable(tool.input_schema).schema,
            "output_schema": None,
        }
        return tool.model_copy(update=shown)

    def read(self, called: str, schema: Mapping[str, Any] | None, arguments: Arguments) -> Arguments:
        """The arguments by their own names. Raises InvalidArguments for texts that are not JSON."""
        if schema is None:
            return arguments
        read, problems = make_portable(dict(schema)).read(arguments)
        if problems:
            raise InvalidArguments(called, problems)
        return read

    def schema_of(self, name: str) -> Mapping[str, Any] | None:
        if (workflow := exposure.find_named(self.entry.workflows, name)) is None:
            return None
        # Reducing a large schema takes ten milliseconds.
        if (schema := workflow.derived.get("served")) is None:
            schema = workflow.derived["served"] = workflow.served_input_schema
        return schema

    def tell_invalid(
        self, called: str, schema: Mapping[str, Any], error: InvalidArguments
    ) -> InvalidArguments:
        plan = make_portable(dict(schema)).plan
        problems = [
            ArgumentProblem(plan.name_place(problem.path), problem.message) for problem in error.problems
        ]
        return InvalidArguments(called, problems)

    def tell_unknown(self, called: str) -> UnknownTool:
        renamed = [
            self.shown_name(name)
            for name, workflow in self.entry.workflows.items()
            if called in workflow.former_tool_names
        ]
        shown = map(self.shown_name, self.entry.workflows)
        return UnknownTool(called, renamed=renamed, similar=find_similar_names(called, shown))


def portable_view(catalogue: exposure.ExposedCatalogue, bounds: Bounds) -> PortableView | None:
    """None unless the toolset is portable."""
    entry = catalogue.toolset_within(bounds)
    return PortableView(entry) if entry is not None and entry.toolset.portable else None


def find_refused(toolset: Toolset, catalogue: exposure.ExposedCatalogue) -> dict[str, list[str]]:
    """The problems with a toolset's tools for some model providers, by name; none in portable mode."""
    if toolset.portable:
        return {}
    limit = limit_for_tools(toolset.slug)
    refused = {
        name: find_refusals(name, workflow.offered_input_schema, limit=limit)
        for name, workflow in exposure.shown_by(toolset, catalogue).items()
    }
    return {name: problems for name, problems in refused.items() if problems}


async def find_portable_view(access: Access) -> PortableView | None:
    if access.caller.toolset is None:
        return None
    return portable_view(await exposure.present_catalogue(), access.bounds)
