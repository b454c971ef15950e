"""`resources/list`, `resources/templates/list` and `resources/read`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.conf import settings
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp_types import (
    INVALID_PARAMS,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
)

from catalogue.database import run_in_database
from catalogue.describing import shorten
from catalogue.exposure import ExposedCatalogue, current_catalogue
from catalogue.models import Workflow
from catalogue.scopes import Scope
from mcp_bridge.declarations import Context, is_modern, page_bounds
from mcp_bridge.resources.executions import EXECUTION_RESOURCES
from mcp_bridge.resources.resource import JSON, Found, Reading, ResourceKind, UnknownResource
from mcp_bridge.resources.workflows import LIST, WORKFLOW_RESOURCES, metadata_address
from mcp_bridge.tokens import Access
from mcp_bridge.tool_lists import icons_of

RESOURCE_NOT_FOUND = -32002
"""Of the handshake versions; later ones retired the number and say -32602."""


class ResourceMethods:
    def __init__(self, access_of: Callable[[Context], Access]) -> None:
        self._access_of = access_of

    def register(self, server: Server[Any]) -> None:
        server.add_request_handler("resources/list", PaginatedRequestParams, self.list_resources)
        server.add_request_handler("resources/templates/list", PaginatedRequestParams, self.list_templates)
        server.add_request_handler("resources/read", ReadResourceRequestParams, self.read_resource)

    async def list_resources(self, context: Context, params: PaginatedRequestParams) -> ListResourcesResult:
        access = self._access_of(context)
        return await run_in_database(_list, access.toolset, access.scopes, params.cursor)

    async def list_templates(
        self, context: Context, params: PaginatedRequestParams
    ) -> ListResourceTemplatesResult:
        scopes = self._access_of(context).scopes
        shown = [kind.as_template for kind in RESOURCES if kind.is_open_to(scopes)]
        positions = [f"{number:03}" for number in range(len(shown))]
        begin, end, following = page_bounds(positions, params.cursor, settings.CATALOGUE["page_size"])
        return ListResourceTemplatesResult(
            resource_templates=shown[begin:end], next_cursor=following, ttl_ms=list_ttl_ms()
        )

    async def read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        try:
            found = await run_in_database(_read, params.uri, self._access_of(context))
        except UnknownResource as error:
            code = INVALID_PARAMS if is_modern(context) else RESOURCE_NOT_FOUND
            raise MCPError(code, str(error), data={"uri": params.uri[:LONGEST_ADDRESS]}) from None
        return ReadResourceResult(contents=[*found.contents], ttl_ms=0 if found.changes else list_ttl_ms())


def listed_resources(
    catalogue: ExposedCatalogue, *, toolset: str | None, scopes: Iterable[str]
) -> dict[str, Workflow | None]:
    """What `resources/list` shows, in its order: the list of workflows (None), then each by its address.

    Schemas and executions are found by their templates: a picker with all of them would be of no use.
    """
    if Scope.READ not in scopes:
        return {}
    shown = catalogue.seen_through(toolset).values()
    return {LIST: None, **{metadata_address(workflow): workflow for workflow in shown}}


def list_ttl_ms() -> int:
    """How long clients may keep what they were told of the catalogue."""
    return round(settings.CATALOGUE["list_ttl"] * 1000)


def _list(toolset: str | None, scopes: frozenset[str], cursor: str | None) -> ListResourcesResult:
    listed = list(listed_resources(current_catalogue(), toolset=toolset, scopes=scopes).items())
    positions = ["0" if workflow is None else f"1{workflow.tool_name}" for _, workflow in listed]
    begin, end, following = page_bounds(positions, cursor, settings.CATALOGUE["page_size"])
    resources = [_resource(uri, workflow) for uri, workflow in listed[begin:end]]
    return ListResourcesResult(resources=resources, next_cursor=following, ttl_ms=list_ttl_ms())


def _resource(uri: str, workflow: Workflow | None) -> Resource:
    if workflow is None:
        whole = RESOURCES[0]
        return Resource(
            uri=uri, name=whole.name, title=whole.title, description=whole.description, mime_type=JSON
        )
    return Resource(
        uri=uri,
        name=workflow.tool_name,
        title=workflow.title,
        description=shorten(workflow.shown_description) or None,
        mime_type=JSON,
        icons=icons_of(workflow),
    )


def _read(uri: str, access: Access) -> Found:
    """Raises UnknownResource, or MCPError where the token does not allow it."""
    kind, variables = find_kind(uri)
    if not kind.is_open_to(access.scopes):
        needed = " or ".join(sorted(kind.scopes))
        raise MCPError(
            INVALID_PARAMS, f"This token may not read {kind.template}: it lacks the scope {needed}."
        )
    return kind.read(Reading(access, uri, variables))


RESOURCES = (*WORKFLOW_RESOURCES, *EXECUTION_RESOURCES)
LONGEST_ADDRESS = 2_000
SHOWN = 100


def find_kind(uri: str) -> tuple[ResourceKind, Mapping[str, str]]:
    """The kind, and the variables of its template. Raises UnknownResource."""
    if len(uri) > LONGEST_ADDRESS:
        raise UnknownResource(
            f"The address has {len(uri):,} characters; none of ours has more than {LONGEST_ADDRESS:,}."
        )
    scheme, _, rest = uri.partition(":")
    # Of an address only the scheme is the same in capitals (RFC 3986).
    address = f"{scheme.lower()}:{rest}"
    for kind in RESOURCES:
        found = kind.template.match(address)
        if found is not None and "#" not in address:
            _check_query(kind, address)
            return kind, {name: value for name, value in found.items() if isinstance(value, str)}
    known = ", ".join(str(kind.template) for kind in RESOURCES)
    raise UnknownResource(f"Unknown resource: {uri[:SHOWN]!r}. The addresses here are {known}.")


def _check_query(kind: ResourceKind, address: str) -> None:
    """The template's own matching passes over what it does not know."""
    _, _, query = address.partition("?")
    names = [pair.partition("=")[0] for pair in query.split("&") if pair]
    known = kind.template.query_variable_names
    if unknown := [name for name in names if name not in known]:
        raise UnknownResource(f"Unknown parameter {unknown[0][:SHOWN]!r}. The address is {kind.template}.")
    if len(names) > len(set(names)):
        raise UnknownResource(f"A parameter is there twice. The address is {kind.template}.")
