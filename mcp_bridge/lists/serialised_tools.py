"""Tools as the bytes that clients get, made once for all lists of a process."""

import json
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from mcp_types import ListToolsResult, Tool
from mcp_types.methods import serialize_server_result

from catalogue.exposure import ExposedCatalogue
from catalogue.models import Workflow
from mcp_bridge.lists.tools import workflow_tool
from mcp_bridge.portability import PortableView

METHOD = "tools/list"


@dataclass(frozen=True, slots=True)
class SerialisedTool:
    """A workflow's tool, and what it was made of."""

    made_of: tuple[Any, ...]
    tool: bytes
    characters: int


class SerialisedTools:
    """The tools of workflows, for all lists of a process: most outlive most revisions."""

    def __init__(self) -> None:
        self._by_version: defaultdict[tuple[str, str], dict[int, SerialisedTool]] = defaultdict(dict)
        """By the protocol's version, and the slug of a portable toolset."""
        self._changing = threading.Lock()

    def of(self, workflow: Workflow, version: str, portable: PortableView | None = None) -> SerialisedTool:
        key = (version, portable.entry.toolset.slug if portable else "")
        known, made_of = self._by_version.get(key, {}).get(workflow.pk), _what_shows(workflow, portable)
        if known is None or known.made_of != made_of:
            tool = serialise_tool(workflow_tool(workflow, portable=portable), version)
            known = SerialisedTool(made_of, tool, len(tool.decode()))
            with self._changing:
                self._by_version[key][workflow.pk] = known
        return known

    def forget_gone(self, catalogue: ExposedCatalogue) -> None:
        present = {workflow.pk for workflow in catalogue.workflows.values()}
        with self._changing:
            for tools in self._by_version.values():
                for gone in tools.keys() - present:
                    del tools[gone]

    def forget(self) -> None:
        with self._changing:
            self._by_version.clear()


serialised_tools = SerialisedTools()


def _what_shows(workflow: Workflow, portable: PortableView | None) -> tuple[Any, ...]:
    """Changes whenever the tool does; the hash stands for all that upstream says, the schemas above all."""
    return (
        workflow.content_hash,
        # As text: 1 and true are the same to Python.
        json.dumps(workflow.argument_overrides),
        portable.shown_name(workflow.tool_name) if portable else workflow.tool_name,
        workflow.title,
        workflow.shown_description,
        workflow.effective_execution_type,
        workflow.promised_output_schema is None,
        workflow.effective_hints,
        workflow.shown_icons,
    )


def serialise_tool(tool: Tool, version: str) -> bytes:
    """One tool as clients of this protocol version read it."""
    (on_the_wire,) = list_on_the_wire([tool], version)["tools"]
    return write_json(on_the_wire)


def list_on_the_wire(tools: list[Tool], version: str, **others: Any) -> dict[str, Any]:
    """A result of `tools/list` as the SDK shapes it for this version, before it stamps it."""
    result = ListToolsResult(tools=tools, **others).model_dump(by_alias=True, mode="json", exclude_none=True)
    return serialize_server_result(METHOD, version, result)


def write_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
