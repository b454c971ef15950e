"""`completion/complete`, for variables of resource templates and arguments of prompts."""

from collections.abc import Iterable

import mcp_types as types
from mcp import MCPError

from access.callers import Scope
from catalogue.database import run_in_database
from catalogue.exposure import current_catalogue
from catalogue.models import ServerFeature
from catalogue.served_schemas import describe_inputs
from connectors.definitions import FeatureKind
from identity.tokens import Access
from mcp_bridge import upstream
from mcp_bridge.prompts import find_offered, values_of_argument
from mcp_bridge.request_meta import Context
from mcp_bridge.resources import RESOURCES

MOST_VALUES = 100
SHOWN = 100


async def complete(
    context: Context, params: types.CompleteRequestParams, access: Access
) -> types.CompleteResult:
    """Raises MCPError for unknown references and arguments."""
    found = await run_in_database(_complete, params, access)
    if isinstance(found, ServerFeature):
        return await upstream.complete(context, found, params, access)
    return found


def _complete(params: types.CompleteRequestParams, access: Access) -> types.CompleteResult | ServerFeature:
    """The feature if its server completes it."""
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
        raise MCPError(types.INVALID_PARAMS, f"Unknown template: {uri[:SHOWN]!r}. The templates are {known}.")
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
    return types.Completion(values=found[:MOST_VALUES], total=len(found), has_more=len(found) > MOST_VALUES)


def _unknown_argument(argument: types.CompletionArgument, of: str, known: Iterable[str]) -> MCPError:
    listed = ", ".join(known) or "none"
    return MCPError(
        types.INVALID_PARAMS, f"{of} has no argument {argument.name[:SHOWN]!r}. Known: {listed[:1000]}."
    )
