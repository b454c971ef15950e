"""Prompts and resources of MCP servers behind the product, passed on to clients."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mcp_types as types
from loguru import logger
from mcp import MCPError
from mcp.shared.path_security import contains_path_traversal
from mcp.shared.uri_template import UriTemplate
from pydantic import ValidationError

from catalogue.connections import connector_for
from catalogue.models import ServerFeature
from catalogue.secrets import CredentialsUnreadable, decrypt_credentials, encrypt_credentials
from connectors.definitions import FeatureKind
from connectors.errors import ConnectorError, NotFound, Rejected
from connectors.protocol import Connector, GivenInput
from executions import rates
from executions.refusals import TooManyCalls
from identity.tokens import Access
from mcp_bridge.elicitation import UNKNOWN_STATE, error_for_client, in_name_of
from mcp_bridge.request_meta import Context, answers_of, as_sent, is_modern
from mcp_bridge.tool_lists import icon_models

READ_SECONDS = 60.0  # The source's "Request timeout" usually ends a request earlier
MAX_VALUES = 100
SHOWN = 100
MAX_READ = 2_000  # Characters of an address
Features = Sequence[ServerFeature]


def find_feature(features: Features, kind: FeatureKind, served_as: str) -> ServerFeature | None:
    found = (one for one in features if one.kind == kind.value and one.served_as == served_as)
    return next(found, None)


@dataclass(frozen=True, slots=True)
class Located:
    feature: ServerFeature
    uri: str
    """The server's own address."""


def find_resource(features: Features, uri: str) -> Located | None:
    """Returns the exposed resource at that address, else that of the first matching template."""
    resource = find_feature(features, FeatureKind.RESOURCE, uri)
    templates = [
        one
        for one in features
        if one.kind == FeatureKind.TEMPLATE.value
        and (resource is None or (one.pk < resource.pk and one.source_id != resource.source_id))
    ]
    # Oldest first, so that no server takes over the addresses of another server's template.
    for feature in sorted(templates, key=lambda one: one.pk):
        if uri.startswith(feature.prefix):
            own = _within(feature.upstream_id, uri[len(feature.prefix) :])
            if own is not None:
                return Located(feature, own)
    return None if resource is None else Located(resource, resource.upstream_id)


def _within(template: str, uri: str) -> str | None:
    """Returns the address as the template expands it, so that nothing else reaches the server; None if it
    does not match."""
    parsed = parsed_template(template)
    found = None if "#" in uri and "{#" not in template else parsed.match(uri)
    if found is None:
        return None
    expanded = parsed.expand(found)
    # The server decodes what is sent, which may give other values than the client wrote.
    read = parsed.match(expanded) or {}
    for value in [*found.values(), *read.values()]:
        parts = [value] if isinstance(value, str) else value
        if any(contains_path_traversal(part) or not part.isprintable() for part in parts):
            return None
    return expanded if read and len(expanded) <= MAX_READ else None


@lru_cache(maxsize=5_000)
def parsed_template(template: str) -> UriTemplate:
    return UriTemplate.parse(template)


def count_read(access: Access) -> None:
    """Counts towards the rates of token, caller and toolset, like a call of a tool. Raises MCPError."""
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
        icons=icon_models(feature.definition.get("icons", [])),
    )


def describe_resource(feature: ServerFeature) -> dict[str, Any]:
    """Fields of a resource or a template, without the address."""
    return {
        "name": feature.definition["name"],
        "title": feature.title,
        "description": feature.description or None,
        "mime_type": feature.definition.get("mime_type"),
        "size": feature.definition.get("size"),
        "icons": icon_models(feature.definition.get("icons", [])),
    }


def check_arguments(feature: ServerFeature, written: Mapping[str, str]) -> None:
    """Raises MCPError that names all problems."""
    known = {argument["name"]: argument.get("required", False) for argument in feature.arguments}
    problems = [
        f"- {name}: it is required" for name, needed in known.items() if needed and name not in written
    ]
    problems += [f"- {name[:SHOWN]!r}: unknown argument" for name in written if name not in known]
    if problems:
        listed = "\n".join(problems)
        raise MCPError(
            types.INVALID_PARAMS, f"Invalid arguments for the prompt {feature.served_as}:\n{listed}"
        )


def given_input(
    context: Context, params: types.InputResponseRequestParams, feature: ServerFeature, access: Access
) -> GivenInput | None:
    """None for clients with a handshake, which do not answer such questions. Raises MCPError."""
    if not is_modern(context):
        return None
    state = None
    if params.request_state is not None:
        # The server's own state, which may be secret and must belong to the same caller.
        try:
            opened = decrypt_credentials(params.request_state)
        except CredentialsUnreadable:
            opened = {}
        if (opened.get("feature"), opened.get("caller")) != (str(feature.pk), access.caller.key):
            raise MCPError(types.INVALID_PARAMS, UNKNOWN_STATE)
        state = opened.get("state")
    return GivenInput(
        capabilities=answers_of(context),
        caller=access.caller.key,
        responses=as_sent(params.input_responses or {}),
        state=state,
    )


def _asks(answer: dict[str, Any], feature: ServerFeature, access: Access) -> types.InputRequiredResult | None:
    """Returns the server's question, in the name of its source; None: it has answered."""
    if answer.get("resultType") != "input_required":
        return None
    requests = in_name_of(feature.source.name, answer["inputRequests"], asked_by=feature.pk)
    # Sealed even without a state of the server, which proves that a response follows a question.
    sealed = {"feature": str(feature.pk), "caller": access.caller.key}
    if answer["requestState"] is not None:
        sealed["state"] = answer["requestState"]
    asked = {"inputRequests": requests or None, "requestState": encrypt_credentials(sealed)}
    try:
        return types.InputRequiredResult.model_validate(asked)
    except ValidationError:
        raise _unusable(feature, "its question") from None


async def get_prompt(
    context: Context,
    feature: ServerFeature,
    written: Mapping[str, str],
    access: Access,
    given: GivenInput | None,
) -> types.GetPromptResult | types.InputRequiredResult:
    """Raises MCPError."""
    async with _server(context, feature, access, "prompts/get") as connector:
        answer = await connector.get_prompt(feature.upstream_id, written, given=given)
    if (asked := _asks(answer, feature, access)) is not None:
        return asked
    result = {"description": answer.get("description"), "messages": answer.get("messages")}
    try:
        return types.GetPromptResult.model_validate(result)
    except ValidationError:
        raise _unusable(feature, "prompts/get") from None


async def read_resource(
    context: Context, located: Located, uri: str, access: Access, given: GivenInput | None
) -> types.ReadResourceResult | types.InputRequiredResult:
    """`uri`: as the client wrote it. Raises MCPError, NotFound."""
    async with _server(context, located.feature, access, "resources/read") as connector:
        answer = await connector.read_resource(located.uri, given=given)
    if (asked := _asks(answer, located.feature, access)) is not None:
        return asked
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
    context: Context, feature: ServerFeature, params: types.CompleteRequestParams, access: Access
) -> types.CompleteResult:
    """Raises MCPError."""
    argument, given = params.argument, (params.context and params.context.arguments) or {}
    kind = FeatureKind(feature.kind)
    async with _server(context, feature, access, "completion/complete") as connector:
        found = await connector.complete(kind, feature.upstream_id, argument.name, argument.value, given)
    values = list(found.values)
    return types.CompleteResult(
        completion=types.Completion(
            values=values[:MAX_VALUES],
            total=found.total,
            has_more=found.has_more or len(values) > MAX_VALUES,
        )
    )


@asynccontextmanager
async def _server(
    context: Context, feature: ServerFeature, access: Access, method: str
) -> AsyncIterator[Connector]:
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
        words, answers = f"{feature.source.name}: {error.message}", answers_of(context)
        told = error_for_client(
            error, words, feature.source.name, answers=answers, version=context.protocol_version
        )
        raise told or MCPError(code, words) from None
    log.info("{} of {} for {}", method, feature, access.caller.name)


def _unusable(feature: ServerFeature, method: str) -> MCPError:
    return MCPError(
        types.INTERNAL_ERROR, f"{feature.source.name}: the server's answer to {method} is not valid MCP."
    )
