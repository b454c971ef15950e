"""Prompts and resources of MCP servers behind the product, passed on to clients."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from loguru import logger
from mcp import MCPError
from pydantic import ValidationError

from catalogue.connections import connector_for
from catalogue.feature_lookup import Located, parsed_template
from catalogue.models import ServerFeature
from connectors.errors import ConnectorError, NotFound, Rejected
from connectors.protocol import Connector
from connectors.server_features import FeatureKind
from executions import rates
from executions.refusals import TooManyCalls
from mcp_bridge.tokens import Access

READ_SECONDS = 60.0  # The source's "Request timeout" usually ends a request before
MOST_VALUES = 100
SHOWN = 100


def count_read(access: Access) -> None:
    """Like a call of a tool: by the rates of token, caller and toolset. Raises MCPError."""
    try:
        rates.take_call(None, access.caller)
    except TooManyCalls as refused:
        data = {"retryAfter": refused.retry_after}
        raise MCPError(types.INTERNAL_ERROR, str(refused), data=data) from None


def feature_prompt(feature: ServerFeature) -> types.Prompt:
    arguments = [
        types.PromptArgument(
            name=argument["name"],
            title=argument.get("title"),
            description=argument.get("description"),
            required=argument.get("required", False),
        )
        for argument in feature.arguments
    ]
    return types.Prompt(
        name=feature.served_as,
        title=feature.title,
        description=feature.description or None,
        arguments=arguments or None,
    )


def feature_resource(feature: ServerFeature) -> types.Resource:
    return types.Resource(uri=feature.served_as, **_described(feature))


def feature_template(feature: ServerFeature) -> types.ResourceTemplate:
    return types.ResourceTemplate(uri_template=feature.served_as, **_described(feature))


def _described(feature: ServerFeature) -> dict[str, Any]:
    return {
        "name": feature.definition["name"],
        "title": feature.title,
        "description": feature.description or None,
        "mime_type": feature.definition.get("mime_type"),
    }


def check_arguments(feature: ServerFeature, written: Mapping[str, str]) -> None:
    """Raises MCPError that names all problems."""
    known = {argument["name"]: argument.get("required", False) for argument in feature.arguments}
    problems = [
        f"- {name}: it is required" for name, needed in known.items() if needed and name not in written
    ]
    problems += [f"- {name[:SHOWN]!r}: there is no such argument" for name in written if name not in known]
    if problems:
        listed = "\n".join(problems)
        raise MCPError(
            types.INVALID_PARAMS, f"Invalid arguments for the prompt {feature.served_as}:\n{listed}"
        )


async def get_prompt(
    feature: ServerFeature, written: Mapping[str, str], access: Access
) -> types.GetPromptResult:
    """Raises MCPError."""
    async with _server(feature, access, "prompts/get") as connector:
        answer = await connector.get_prompt(feature.upstream_id, written)
    result = {"description": answer.get("description"), "messages": answer.get("messages")}
    try:
        return types.GetPromptResult.model_validate(result)
    except ValidationError:
        raise _unusable(feature, "prompts/get") from None


async def read_resource(located: Located, uri: str, access: Access) -> types.ReadResourceResult:
    """`uri`: as the client wrote it. Raises MCPError, NotFound."""
    async with _server(located.feature, access, "resources/read") as connector:
        answer = await connector.read_resource(located.uri)
    contents = answer.get("contents")
    if isinstance(contents, list):
        contents = [
            one | {"uri": uri} if isinstance(one, dict) and one.get("uri") == located.uri else one
            for one in contents
        ]
    try:
        return types.ReadResourceResult.model_validate({"contents": contents, "ttlMs": 0})
    except ValidationError:
        raise _unusable(located.feature, "resources/read") from None


async def complete(
    feature: ServerFeature, params: types.CompleteRequestParams, access: Access
) -> types.CompleteResult:
    """Raises MCPError."""
    argument, given = params.argument, (params.context and params.context.arguments) or {}
    kind = FeatureKind(feature.kind)
    async with _server(feature, access, "completion/complete") as connector:
        found = await connector.complete(kind, feature.upstream_id, argument.name, argument.value, given)
    values = list(found.values)
    return types.CompleteResult(
        completion=types.Completion(
            values=values[:MOST_VALUES],
            total=found.total,
            has_more=found.has_more or len(values) > MOST_VALUES,
        )
    )


def argument_names(feature: ServerFeature) -> list[str]:
    """Of a prompt, or the variables of a template."""
    if feature.kind == FeatureKind.TEMPLATE.value:
        return parsed_template(feature.upstream_id).variable_names
    return [argument["name"] for argument in feature.arguments]


@asynccontextmanager
async def _server(feature: ServerFeature, access: Access, method: str) -> AsyncIterator[Connector]:
    """Raises MCPError and, for a resource that the server does not know, NotFound."""
    log = logger.bind(source=feature.source.name, caller=access.caller.key)
    try:
        async with asyncio.timeout(READ_SECONDS), connector_for(feature.source) as connector:
            yield connector
    except TimeoutError:
        log.warning("{} of {} took longer than {:g} s", method, feature, READ_SECONDS)
        raise MCPError(
            types.INTERNAL_ERROR, f"{feature.source.name} did not answer within {READ_SECONDS:g} s."
        ) from None
    except NotFound as error:
        raise NotFound(f"{feature.source.name}: {error.message}") from None
    except ConnectorError as error:
        log.warning("{} of {} failed: {}", method, feature, error.message)
        is_callers = isinstance(error, Rejected) and error.details.get("code") == types.INVALID_PARAMS
        code = types.INVALID_PARAMS if is_callers else types.INTERNAL_ERROR
        raise MCPError(code, f"{feature.source.name}: {error.message}") from None
    log.info("{} of {} for {}", method, feature, access.caller.name)


def _unusable(feature: ServerFeature, method: str) -> MCPError:
    return MCPError(
        types.INTERNAL_ERROR, f"{feature.source.name}: the server's answer to {method} is not valid MCP."
    )
