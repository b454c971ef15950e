"""Prompts: workflows that people start with a command of their client, and those of MCP servers. Also
`completion/complete`, for arguments of prompts and variables of resource templates."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import mcp_types as types
from django.conf import settings
from mcp import MCPError
from mcp.server.lowlevel import Server
from pydantic_core import from_json

from access.callers import Bounds, Scope, describe_lack
from catalogue.database import run_in_database
from catalogue.exposure import ExposedCatalogue, current_catalogue, find_named
from catalogue.models import ServerFeature, Workflow
from catalogue.portable_schemas import make_portable
from catalogue.schemas import find_argument_problems
from catalogue.served_schemas import Place, describe_inputs, required_first
from connectors.definitions import FeatureKind
from identity.tokens import Access
from mcp_bridge import upstream
from mcp_bridge.cards import allows_cards
from mcp_bridge.content import write_output
from mcp_bridge.portability import portable_view
from mcp_bridge.request_meta import Context, page_bounds, shows_cards
from mcp_bridge.resources import RESOURCES
from mcp_bridge.tool_lists import icon_models, list_ttl_ms, listed_workflows, make_of_each

Prompts = Mapping[str, Workflow | ServerFeature]  # By name, in alphabetical order
WRITTEN_AS_THEY_ARE = frozenset({"string", "any"})  # Types with text as their value; others are JSON


def register_prompts(server: Server[Any], access_of: Callable[[Context], Access]) -> None:
    server.add_request_handler(
        "prompts/list",
        types.PaginatedRequestParams,
        lambda context, params: run_in_database(_list, access_of(context), params.cursor),
    )
    server.add_request_handler(
        "prompts/get",
        types.GetPromptRequestParams,
        lambda context, params: _get(context, params, access_of(context)),
    )


def offered_prompts(catalogue: ExposedCatalogue, bounds: Bounds, *, scopes: Iterable[str]) -> Prompts:
    """A workflow takes precedence over a server's prompt with the same name."""
    if Scope.RUN not in scopes:
        return {}
    prompts: dict[str, Workflow | ServerFeature] = {
        feature.served_as: feature
        for feature in catalogue.features_within(bounds)
        if feature.kind == FeatureKind.PROMPT.value
    }
    seen = catalogue.seen_within(bounds)
    offered = {name: workflow for name, workflow in seen.items() if workflow.offered_as_prompt}
    return dict(sorted((prompts | offered).items()))


def find_offered(access: Access, name: str) -> Workflow | ServerFeature:
    """Raises MCPError."""
    if not access.allows(Scope.RUN):
        raise MCPError(types.INVALID_PARAMS, f"This token may not use prompts: {describe_lack(Scope.RUN)}")
    offered = offered_prompts(current_catalogue(), access.bounds, scopes=access.scopes)
    if (prompt := offered.get(name)) is not None:
        return prompt
    workflows = {known: one for known, one in offered.items() if isinstance(one, Workflow)}
    if (workflow := find_named(workflows, name)) is None:
        raise MCPError(
            types.INVALID_PARAMS, f"Unknown prompt: {name[:100]!r}. prompts/list lists the prompts."
        )
    return workflow


def list_prompts(prompts: Iterable[Workflow | ServerFeature]) -> list[types.Prompt]:
    """Omits those with invalid rows."""
    listed: list[types.Prompt] = []
    for one in prompts:
        if isinstance(one, Workflow):
            listed += (prompt for _, prompt in make_of_each(workflow_prompt, [one]))
        else:
            listed.append(upstream.feature_prompt(one))
    return listed


def workflow_prompt(workflow: Workflow) -> types.Prompt:
    schema = workflow.offered_input_schema
    inputs = describe_inputs(schema)
    required = {name for name, described in inputs.items() if described["required"]}
    return types.Prompt(
        name=workflow.tool_name,
        title=workflow.title,
        description=workflow.shown_description or None,
        arguments=[_argument(name, inputs[name]) for name in required_first(inputs, required, schema)],
        icons=icon_models(workflow.shown_icons),
    )


def values_of_argument(workflow: Workflow, name: str) -> list[str]:
    """Possible values as a person would write them, if the schema lists them."""
    root = workflow.offered_input_schema
    properties = root.get("properties")
    place = Place(properties.get(name) if isinstance(properties, dict) else None, root)
    for schema in place.chain():
        if isinstance(values := schema.get("enum"), list):
            return [write_output(value) for value in values]
        if "const" in schema:
            return [write_output(schema["const"])]
        if schema.get("type") == "boolean":
            return ["true", "false"]
    return []


def _list(access: Access, cursor: str | None) -> types.ListPromptsResult:
    catalogue = current_catalogue()
    offered = offered_prompts(catalogue, access.bounds, scopes=access.scopes)
    names = list(offered)
    begin, end, following = page_bounds(names, cursor, settings.CATALOGUE.page_size)
    page = [offered[name] for name in names[begin:end]]
    return types.ListPromptsResult(prompts=list_prompts(page), next_cursor=following, ttl_ms=list_ttl_ms())


async def _get(
    context: Context, params: types.GetPromptRequestParams, access: Access
) -> types.GetPromptResult | types.InputRequiredResult:
    """Raises MCPError."""
    written = params.arguments or {}
    found = await run_in_database(_find_or_render, access, params.name, written, shows_cards(context))
    if isinstance(found, ServerFeature):
        given = upstream.given_input(context, params, found, access)
        return await upstream.get_prompt(context, found, written, access, given)
    return found


def _find_or_render(
    access: Access, name: str, written: Mapping[str, str], has_cards: bool
) -> types.GetPromptResult | ServerFeature:
    """Raises MCPError."""
    workflow = find_offered(access, name)
    if isinstance(workflow, ServerFeature):
        upstream.check_arguments(workflow, written)
        upstream.count_read(access)
        return workflow
    catalogue = current_catalogue()
    has_form = has_cards and allows_cards(catalogue, access.bounds)
    arguments, is_complete = _read_arguments(workflow, written, has_form=has_form)
    tools = listed_workflows(catalogue, access.bounds, scopes=access.scopes)
    portable = portable_view(catalogue, access.bounds)
    shown = workflow.tool_name if portable is None else portable.shown_name(workflow.tool_name)
    if portable is not None:
        arguments = make_portable(workflow.served_input_schema).plan.write(arguments)
    # `execute_workflow` shows the form for what is missing.
    has_own_tool = is_complete and workflow.tool_name in tools
    tool, sent = (
        (shown, arguments) if has_own_tool else ("execute_workflow", {"name": shown, "arguments": arguments})
    )
    message = (
        f'Run the workflow "{workflow.title}": call the tool `{tool}` with exactly these arguments, then '
        f"tell me what came of it.\n\n```json\n{json.dumps(sent, ensure_ascii=False, indent=2)}\n```"
    )
    return types.GetPromptResult(
        description=workflow.shown_description or None,
        messages=[types.PromptMessage(role="user", content=types.TextContent(text=message))],
    )


def _argument(name: str, described: Mapping[str, Any]) -> types.PromptArgument:
    """Clients show only a text field for each, so the description states the type."""
    kind = described["type"]
    sort = "" if kind in WRITTEN_AS_THEY_ARE else f"({'JSON ' if kind in ('object', 'array') else ''}{kind})"
    description = " ".join(part for part in (described["description"], sort) if part)
    return types.PromptArgument(name=name, description=description or None, required=described["required"])


def _read_arguments(
    workflow: Workflow, written: Mapping[str, str], *, has_form: bool
) -> tuple[dict[str, Any], bool]:
    """Drops empty optional ones: forms cannot omit a field. Also returns whether no required one is missing;
    `has_form`: a form asks for those. Raises MCPError that names all problems."""
    schema = workflow.offered_input_schema
    inputs = describe_inputs(schema)
    arguments: dict[str, Any] = {}
    for name, text in written.items():
        described = inputs.get(name, {"type": "any", "required": False})
        if text or (described["required"] and not has_form):
            arguments[name] = _read(text, described["type"])
    if problems := find_argument_problems(schema, arguments):
        if has_form and not find_argument_problems({**schema, "required": []}, arguments):
            return arguments, False
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise MCPError(
            types.INVALID_PARAMS, f"Invalid arguments for the prompt {workflow.tool_name}:\n{listed}"
        )
    return arguments, True


def _read(text: str, kind: str) -> Any:
    """Returns the text itself if the type allows it or it is not JSON, which the schema then rejects."""
    if WRITTEN_AS_THEY_ARE & set(kind.split(" or ")):
        return text
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


MAX_VALUES = 100
MAX_SHOWN = 100


async def complete(
    context: Context, params: types.CompleteRequestParams, access: Access
) -> types.CompleteResult:
    """Raises MCPError for unknown references and arguments."""
    found = await run_in_database(_complete, params, access)
    if isinstance(found, ServerFeature):
        return await upstream.complete(context, found, params, access)
    return found


def _complete(params: types.CompleteRequestParams, access: Access) -> types.CompleteResult | ServerFeature:
    """Returns the feature if its server completes it."""
    if isinstance(params.ref, types.PromptReference):
        name, workflow = params.ref.name, find_offered(access, params.ref.name)
        if isinstance(workflow, ServerFeature):
            return _checked(workflow, params.argument, name)
        if params.argument.name not in (inputs := describe_inputs(workflow.offered_input_schema)):
            raise _unknown_argument(params.argument, name, inputs)
        values: Iterable[str] = values_of_argument(workflow, params.argument.name)
    else:
        seen = current_catalogue().features_within(access.bounds) if access.allows(Scope.RUN) else ()
        if (template := upstream.find_feature(seen, FeatureKind.TEMPLATE, params.ref.uri)) is not None:
            return _checked(template, params.argument, params.ref.uri)
        values = _values_for_resource(params.ref.uri, params.argument, access)
    return types.CompleteResult(completion=_choose(values, params.argument.value))


def _checked(feature: ServerFeature, argument: types.CompletionArgument, of: str) -> ServerFeature:
    if feature.kind == FeatureKind.TEMPLATE.value:
        names = upstream.parsed_template(feature.upstream_id).variable_names
    else:
        names = [argument["name"] for argument in feature.arguments]
    if argument.name not in names:
        raise _unknown_argument(argument, of, names)
    return feature


def _values_for_resource(uri: str, argument: types.CompletionArgument, access: Access) -> Iterable[str]:
    kind = next((kind for kind in RESOURCES if str(kind.template) == uri), None)
    if kind is None:
        known = ", ".join(str(kind.template) for kind in RESOURCES)
        raise MCPError(
            types.INVALID_PARAMS, f"Unknown template: {uri[:MAX_SHOWN]!r}. The templates are {known}."
        )
    if argument.name not in (names := kind.template.variable_names):
        raise _unknown_argument(argument, uri, names)
    suggest = kind.suggestions.get(argument.name)
    if suggest is None or not kind.is_open_to(access.scopes):
        return ()
    return suggest(access, argument.value)


def _choose(values: Iterable[str], typed: str) -> types.Completion:
    """Prefix matches come first."""
    wanted = typed.casefold()
    containing = [value for value in values if wanted in value.casefold()]
    found = sorted(containing, key=lambda value: not value.casefold().startswith(wanted))
    return types.Completion(values=found[:MAX_VALUES], total=len(found), has_more=len(found) > MAX_VALUES)


def _unknown_argument(argument: types.CompletionArgument, of: str, known: Iterable[str]) -> MCPError:
    listed = ", ".join(known) or "none"
    return MCPError(
        types.INVALID_PARAMS, f"{of} has no argument {argument.name[:MAX_SHOWN]!r}. Known: {listed[:1000]}."
    )
