"""Resources about workflows: which there are, what one is, what it takes and gives."""

from collections.abc import Iterable
from typing import Any

from mcp.shared.uri_template import UriTemplate

from catalogue.describing import describe_workflow, unavailable_sources
from catalogue.exposure import Workflows, current_catalogue, find_named
from catalogue.inputs import summarise_inputs
from catalogue.models import Workflow
from catalogue.scopes import Scope
from catalogue.search import WorkflowQuery, select_workflows, tagged
from mcp_bridge.content import write_output
from mcp_bridge.resources.resource import Found, Reading, ResourceKind, UnknownResource
from mcp_bridge.tokens import Access

LIST = "workflow://list"
SCHEMAS = ("input_schema", "output_schema")


def metadata_address(workflow: Workflow) -> str:
    # Names consist of characters that no address has to encode.
    return f"workflow://metadata/{workflow.tool_name}"


def _read_list(reading: Reading) -> Found:
    """Names only (D8): whoever wants to know more of one reads its metadata."""
    catalogue, toolset = current_catalogue(), reading.access.toolset
    wish = WorkflowQuery(tags=_split(reading.variables.get("tags", "")))
    selection = select_workflows(catalogue, wish, toolset=toolset)
    document: dict[str, Any] = {
        "workflows": [workflow.tool_name for workflow in selection.workflows],
        "total": len(selection.workflows),
        "unavailable_sources": unavailable_sources(catalogue, toolset=toolset),
    }
    if selection.hint:
        document |= {"hint": selection.hint, "known_tags": list(selection.known_tags)}
    return reading.holds(write_output(document))


def _read_metadata(reading: Reading) -> Found:
    workflow = _find_workflow(reading)
    document: dict[str, Any] = {
        name: told for name, told in describe_workflow(workflow).items() if name not in SCHEMAS
    }
    document["input_summary"] = summarise_inputs(workflow.offered_input_schema)
    document["schema"] = f"workflow://schema/{workflow.tool_name}"
    return reading.holds(write_output(document))


def _read_schema(reading: Reading) -> Found:
    workflow = _find_workflow(reading)
    document = {
        "name": workflow.tool_name,
        "input_schema": workflow.served_input_schema,
        "output_schema": workflow.served_output_schema,
    }
    return reading.holds(write_output(document))


def _find_workflow(reading: Reading) -> Workflow:
    name = reading.variables["name"]
    workflow = find_named(_seen_by(reading.access), name)
    if workflow is None:
        raise UnknownResource(
            f"There is no workflow {name[:100]!r}, or it is disabled. {LIST} names those that there are."
        )
    return workflow


def _seen_by(access: Access) -> Workflows:
    return current_catalogue().seen_through(access.toolset)


def _split(text: str) -> list[str]:
    return [tag for part in text.split(",") if (tag := part.strip())]


def _suggest_names(access: Access, typed: str) -> Iterable[str]:
    """Former names that still work only where somebody types one: they are on their way out."""
    seen = _seen_by(access)
    former = (name for workflow in seen.values() for name in workflow.live_aliases if typed)
    return [*seen, *(name for name in former if name.casefold().startswith(typed.casefold()))]


def _suggest_tags(access: Access, typed: str) -> Iterable[str]:
    """After a comma, only tags that are found together with those before it."""
    before, comma, _ = typed.rpartition(",")
    chosen = _split(before)
    shown = tagged(_seen_by(access).values(), chosen)
    used = set(map(str.casefold, chosen))
    tags = {tag for workflow in shown for tag in workflow.shown_tags if tag.casefold() not in used}
    # One with a comma could not be told from two.
    return [f"{before}{comma}{tag}" for tag in sorted(tags) if "," not in tag]


WORKFLOW_RESOURCES = (
    ResourceKind(
        template=UriTemplate.parse(f"{LIST}{{?tags}}"),
        name="workflow_list",
        title="Workflows",
        description=(
            "The names of the workflows that can be run; workflow://metadata/{name} tells what one is for. "
            "`tags` is a list with commas: only workflows that carry all of these tags. Also names the "
            "engines that cannot be reached."
        ),
        scopes=frozenset({Scope.READ}),
        read=_read_list,
        suggestions={"tags": _suggest_tags},
    ),
    ResourceKind(
        template=UriTemplate.parse("workflow://metadata/{name}"),
        name="workflow_metadata",
        title="One workflow",
        description="What a workflow is for, where it runs, who made it and what it takes.",
        scopes=frozenset({Scope.READ}),
        read=_read_metadata,
        suggestions={"name": _suggest_names},
    ),
    ResourceKind(
        template=UriTemplate.parse("workflow://schema/{name}"),
        name="workflow_schema",
        title="A workflow's schemas",
        description="The JSON Schemas of a workflow's arguments and, where there is one, of its result.",
        scopes=frozenset({Scope.READ}),
        read=_read_schema,
        suggestions={"name": _suggest_names},
    ),
)
