"""`resources/list`, `resources/templates/list` and `resources/read`."""

import base64
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mcp_types as types
from django.conf import settings
from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.shared.uri_template import UriTemplate

from access.callers import Bounds, Scope, describe_lack
from catalogue.database import run_in_database
from catalogue.descriptions import describe_workflow, shorten, unavailable_sources
from catalogue.exposure import ExposedCatalogue, current_catalogue, find_named
from catalogue.models import ServerFeature, Workflow
from catalogue.models.server_feature import scheme_of
from catalogue.naming import counted
from catalogue.search import WorkflowQuery, select_workflows, tagged
from catalogue.served_schemas import summarise_inputs
from connectors.definitions import FeatureKind
from connectors.errors import NotFound
from connectors.formats.lists import split_list
from connectors.formats.mcp_apps import SCHEME
from executions.asking import NotAnswered, ask_result
from executions.change_feed import find_fresh_execution
from executions.models import Execution, State
from executions.reading import UnknownExecution, find_execution, list_own_executions
from identity.tokens import Access
from mcp_bridge import content, upstream
from mcp_bridge.cards import CARD, CARD_URI, allows_cards, read_card
from mcp_bridge.cards.relay import describe_app, read_app
from mcp_bridge.request_meta import Context, is_modern, page_bounds, shows_cards
from mcp_bridge.results import describe_within_bounds, result_text
from mcp_bridge.tool_lists import icon_models, list_ttl_ms

JSON = "application/json"
TEXT = "text/plain"
Contents = types.TextResourceContents | types.BlobResourceContents
Suggest = Callable[[Access, str], Iterable[str]]  # Values, best first, for a caller and the typed text
LIST = "workflow://list"
SCHEMAS = ("input_schema", "output_schema")
META = "workflow-catalogue/"
BINARY = "application/octet-stream"
MAX_NUMBER = 15


class UnknownResource(Exception):
    """The caller may see nothing at this address; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Reading:
    access: Access
    uri: str
    variables: Mapping[str, str]  # Of the template, decoded; those of the query are optional

    def holds(self, text: str, *, mime_type: str = JSON) -> "Found":
        return Found([types.TextResourceContents(uri=self.uri, mime_type=mime_type, text=text)])


@dataclass(frozen=True, slots=True)
class Found:
    contents: Sequence[Contents]
    changes: bool = False  # Whether clients must not cache it
    ask: Callable[[], Awaitable[dict[str, Any]]] | None = None  # Instead of contents. Raises NotAnswered.


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceKind:
    template: UriTemplate
    name: str
    title: str
    description: str
    mime_type: str | None = JSON
    scopes: frozenset[Scope]  # Any of them suffices
    read: Callable[[Reading], Found]  # May query the database. Raises UnknownResource.
    suggestions: Mapping[str, Suggest] = field(default_factory=dict)  # By variable; may query the database

    def is_open_to(self, scopes: Iterable[str]) -> bool:
        return not self.scopes.isdisjoint(scopes)

    @property
    def as_template(self) -> types.ResourceTemplate:
        return types.ResourceTemplate(
            uri_template=str(self.template),
            name=self.name,
            title=self.title,
            description=self.description,
            mime_type=self.mime_type,
        )


def _read_list(reading: Reading) -> Found:
    catalogue, bounds = current_catalogue(), reading.access.bounds
    wish = WorkflowQuery(tags=split_list(reading.variables.get("tags", "")))
    selection = select_workflows(catalogue, wish, bounds)
    document: dict[str, Any] = {
        "workflows": [workflow.tool_name for workflow in selection.workflows],
        "total": len(selection.workflows),
        "unavailable_sources": unavailable_sources(catalogue, bounds),
    }
    if selection.hint:
        document |= {"hint": selection.hint, "known_tags": list(selection.known_tags)}
    return reading.holds(content.write_output(document))


def _read_metadata(reading: Reading) -> Found:
    workflow = _find_workflow(reading)
    document: dict[str, Any] = {
        name: value for name, value in describe_workflow(workflow).items() if name not in SCHEMAS
    }
    document["input_summary"] = summarise_inputs(workflow.offered_input_schema)
    document["schema"] = f"workflow://schema/{workflow.tool_name}"
    return reading.holds(content.write_output(document))


def _read_schema(reading: Reading) -> Found:
    workflow = _find_workflow(reading)
    document = {
        "name": workflow.tool_name,
        "input_schema": workflow.served_input_schema,
        "output_schema": workflow.served_output_schema,
    }
    return reading.holds(content.write_output(document))


def _find_workflow(reading: Reading) -> Workflow:
    name = reading.variables["name"]
    workflow = find_named(current_catalogue().seen_within(reading.access.bounds), name)
    if workflow is None:
        raise UnknownResource(
            f"There is no workflow {name[:100]!r}, or it is disabled. {LIST} lists the workflows."
        )
    return workflow


def _suggest_names(access: Access, typed: str) -> Iterable[str]:
    """Former names only if they match."""
    seen = current_catalogue().seen_within(access.bounds)
    former = (name for workflow in seen.values() for name in workflow.live_aliases if typed)
    return [*seen, *(name for name in former if name.casefold().startswith(typed.casefold()))]


def _suggest_tags(access: Access, typed: str) -> Iterable[str]:
    """Suggests after a comma only tags of workflows that have those before it."""
    before, comma, _ = typed.rpartition(",")
    chosen = split_list(before)
    shown = tagged(current_catalogue().seen_within(access.bounds).values(), chosen)
    used = set(map(str.casefold, chosen))
    tags = {tag for workflow in shown for tag in workflow.shown_tags if tag.casefold() not in used}
    # A tag with a comma would be parsed as two.
    return [f"{before}{comma}{tag}" for tag in sorted(tags) if "," not in tag]


WORKFLOW_RESOURCES = (
    ResourceKind(
        template=UriTemplate.parse(f"{LIST}{{?tags}}"),
        name="workflow_list",
        title="Workflows",
        description=(
            "The names of the workflows that can be run; workflow://metadata/{name} describes one of them. "
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
SUGGESTED = 200  # Newest executions of a caller


def _read_execution(reading: Reading) -> Found:
    execution = _find_execution(reading, find=find_fresh_execution)
    found = reading.holds(content.write_output(describe_within_bounds(execution)))
    return Found(found.contents, changes=not execution.is_settled)


def _read_result(reading: Reading) -> Found:
    """Returns the output, or a part of it with the next address; the first part includes binary content."""
    execution = _find_execution(reading)
    address = f"execution://{execution.pk}"
    if not execution.is_settled:
        raise UnknownResource(
            f"{execution.tool_name} is still {execution.state_label}, so it has no result yet. "
            f"{address} shows its progress."
        )
    if execution.state != State.COMPLETED:
        raise UnknownResource(
            f"{execution.tool_name} {execution.get_state_display()}, so it has no result. {address} says why."
        )
    offset = read_offset(reading)
    if query := reading.variables.get("query"):
        if offset:
            raise UnknownResource("Use `query` or `offset`: an answer has no parts.")
        return Found((), ask=partial(ask_result, execution, query))
    if problem := content.why_no_output(execution):
        raise UnknownResource(problem)
    text, mime_type = result_text(execution)
    part = _take_part(text, offset)
    if part.is_whole:
        contents: list[Contents] = list(reading.holds(part.text, mime_type=mime_type).contents)
    else:
        contents = _part_contents(reading, part, partial(content.result_address, execution))
    return Found(contents if offset else [*contents, *binary_contents(execution)])


def _find_execution(reading: Reading, *, find: Callable[..., Execution] = find_execution) -> Execution:
    text = reading.variables["id"]
    try:
        if execution_key(text.lower()) is None:
            raise UnknownExecution(text)
        return find(text, caller=reading.access.caller)
    except UnknownExecution as error:
        raise UnknownResource(str(error)) from None


def execution_key(text: str) -> uuid.UUID | None:
    """Parses only the canonical form, as clients compare ids. Returns None for others."""
    with suppress(ValueError):
        key = uuid.UUID(text)
        return key if str(key) == text else None
    return None


def _take_part(text: str, offset: int) -> content.Part:
    try:
        return content.take_part(text, offset=offset)
    except content.NoSuchPart as error:
        raise UnknownResource(str(error)) from None


def _suggest_newest(access: Access, typed: str, *, state: str = "") -> Iterable[str]:
    page = list_own_executions(access.caller, state=state, limit=SUGGESTED)
    return [str(execution.pk) for execution in page.rows]


def _read_block(reading: Reading) -> Found:
    """Reads blocks of a failed run, too: the engine may give the reason in them."""
    execution = _find_execution(reading)
    block, offset = _find_block(reading, execution), read_offset(reading)

    def address(*, offset: int) -> str:
        return content.content_address(execution, block.number, offset=offset)

    if block.data is not None:
        return Found(_binary_contents(reading, block.data, offset, block.mime_type or BINARY, address))
    text, mime_type = block.text, block.mime_type or TEXT
    if text is None:
        text, mime_type = content.write_output(block.raw), JSON
    part = _take_part(text, offset)
    if part.is_whole:
        return reading.holds(part.text, mime_type=mime_type)
    return Found(_part_contents(reading, part, address))


def binary_contents(execution: Execution) -> Iterator[Contents]:
    """Binary blocks of a result, or their addresses if they are too large."""
    without_text = [block for block in content.blocks_of(execution) if block.data]
    for block, fits in content.SizeBudget.usual().share_out(without_text):
        if fits and block.data is not None:
            yield _blob(block.address, block.data, block.mime_type or BINARY)
        else:
            yield types.TextResourceContents(uri=block.address, mime_type=TEXT, text=block.words)


def _part_contents(reading: Reading, part: content.Part, address: Callable[..., str]) -> list[Contents]:
    meta, note = _lead_on("characters", part.offset, part.end, part.total, address)
    return [types.TextResourceContents(uri=reading.uri, mime_type=TEXT, text=part.text, _meta=meta), *note]


def _lead_on(
    units: str, offset: int, end: int, total: int, address: Callable[..., str]
) -> tuple[dict[str, Any], list[Contents]]:
    """`_meta` of a part, and a sentence for models, which do not see it. Both have the next address, which
    `address` creates from an offset, unless the part is the last."""
    meta: dict[str, Any] = {f"{META}offset": offset, f"{META}{units}": total}
    if end >= total:
        return meta, []
    following = meta[f"{META}next"] = address(offset=end)
    note = f"{units.capitalize()} {offset + 1:,} to {end:,} of {total:,}. The next part is {following}"
    return meta, [types.TextResourceContents(uri=following, mime_type=TEXT, text=note)]


def read_offset(reading: Reading) -> int:
    return _number(reading.variables.get("offset") or "0", "offset")


def _binary_contents(
    reading: Reading, data: bytes, offset: int, mime_type: str, address: Callable[..., str]
) -> list[Contents]:
    if offset and offset >= len(data):
        raise UnknownResource(f"The offset {offset:,} is past the end: the block has {len(data):,} bytes.")
    end = min(offset + settings.CATALOGUE.inline_content_bytes, len(data))
    if offset == 0 and end == len(data):
        return [_blob(reading.uri, data, mime_type)]
    meta, note = _lead_on("bytes", offset, end, len(data), address)
    # A part of a picture cannot be shown.
    return [_blob(reading.uri, data[offset:end], BINARY, meta=meta), *note]


def _blob(
    uri: str, data: bytes, mime_type: str, *, meta: dict[str, Any] | None = None
) -> types.BlobResourceContents:
    return types.BlobResourceContents(
        uri=uri, mime_type=mime_type, blob=base64.b64encode(data).decode(), _meta=meta
    )


def _find_block(reading: Reading, execution: Execution) -> content.Block:
    number = _number(reading.variables["number"], "The number of a block")
    blocks = content.blocks_of(execution)
    if number < len(blocks):
        return blocks[number]
    if execution.state == State.COMPLETED and (problem := content.why_no_output(execution)):
        raise UnknownResource(problem)
    raise UnknownResource(
        f"There is no block {number}: the result has {counted(len(blocks), 'block')}, numbered from 0. "
        f"execution://{execution.pk} shows the state of the run."
    )


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_NUMBER):
        raise UnknownResource(f"{what} must be an integer, 0 or more.")
    return int(text)


EXECUTION_RESOURCES = (
    ResourceKind(
        template=UriTemplate.parse("execution://{id}"),
        name="execution",
        title="An execution",
        description="The progress of a run that you started, and its output once it has ended, unless large.",
        scopes=frozenset({Scope.READ, Scope.RUN}),
        read=_read_execution,
        suggestions={"id": _suggest_newest},
    ),
    ResourceKind(
        template=UriTemplate.parse("execution://{id}/result{?offset,query}"),
        name="execution_result",
        title="The result of an execution",
        description=(
            "The output of a completed run. A large one comes in parts: `offset` is the character to begin "
            "at, and each part tells the address of the next. `query` is JMESPath, to read less of it."
        ),
        mime_type=None,
        # Callers who may only run read the large results of their calls here.
        scopes=frozenset({Scope.READ, Scope.RUN}),
        read=_read_result,
        suggestions={"id": partial(_suggest_newest, state=State.COMPLETED)},
    ),
    ResourceKind(
        template=UriTemplate.parse("execution://{id}/result/content/{number}{?offset}"),
        name="execution_content",
        title="A content block of a result",
        description=(
            "A picture, a sound, a file or a text of a result that consists of such, counted from 0. Large "
            "ones come in parts: `offset` is the byte to begin at, of texts the character."
        ),
        mime_type=None,
        scopes=frozenset({Scope.READ, Scope.RUN}),
        read=_read_block,
        suggestions={"id": partial(_suggest_newest, state=State.COMPLETED)},
    ),
)
RESOURCE_NOT_FOUND = -32002  # Of handshake versions; later ones use -32602


def register_resources(server: Server[Any], access_of: Callable[[Context], Access]) -> None:
    server.add_request_handler(
        "resources/list",
        types.PaginatedRequestParams,
        lambda context, params: run_in_database(
            _list, access_of(context), params.cursor, shows_cards(context)
        ),
    )
    server.add_request_handler(
        "resources/templates/list",
        types.PaginatedRequestParams,
        lambda context, params: run_in_database(_list_templates, access_of(context), params.cursor),
    )
    server.add_request_handler(
        "resources/read",
        types.ReadResourceRequestParams,
        lambda context, params: _answer_read(context, params, access_of(context)),
    )


async def _answer_read(
    context: Context, params: types.ReadResourceRequestParams, access: Access
) -> types.ReadResourceResult | types.InputRequiredResult:
    if params.uri == CARD_URI:
        return read_card(list_ttl_ms())
    try:
        found = await run_in_database(_read, params.uri, access)
        if isinstance(found, upstream.Located):
            given = upstream.given_input(context, params, found.feature, access)
            return await upstream.read_resource(context, found, params.uri, access, given)
        if found.ask is not None:
            found = Reading(access, params.uri, {}).holds(content.write_output(await found.ask()))
    except NotAnswered as error:
        raise MCPError(types.INVALID_PARAMS, str(error)) from None
    except (UnknownResource, NotFound) as error:
        code = types.INVALID_PARAMS if is_modern(context) else RESOURCE_NOT_FOUND
        raise MCPError(code, str(error), data={"uri": params.uri[:MAX_ADDRESS_LENGTH]}) from None
    return types.ReadResourceResult(contents=[*found.contents], ttl_ms=0 if found.changes else list_ttl_ms())


def listed_resources(
    catalogue: ExposedCatalogue, bounds: Bounds, *, scopes: Iterable[str], has_cards: bool = False
) -> dict[str, Workflow | ServerFeature | None]:
    """Returns them by address; None: the list of workflows. Schemas and executions have only templates."""
    listed: dict[str, Workflow | ServerFeature | None] = {}
    if Scope.READ in scopes:
        shown = catalogue.seen_within(bounds).values()
        # Names need no URL encoding.
        workflows = {f"workflow://metadata/{workflow.tool_name}": workflow for workflow in shown}
        listed |= {LIST: None, **workflows}
    of_servers = _of_servers(catalogue, bounds, FeatureKind.RESOURCE, scopes)
    return listed | {one.served_as: one for one in of_servers if has_cards or not one.is_shown_app}


def listed_templates(
    catalogue: ExposedCatalogue, bounds: Bounds, *, scopes: Iterable[str]
) -> list[ResourceKind | ServerFeature]:
    ours = [kind for kind in RESOURCES if kind.is_open_to(scopes)]
    return [*ours, *_of_servers(catalogue, bounds, FeatureKind.TEMPLATE, scopes)]


def what_shows(
    catalogue: ExposedCatalogue, bounds: Bounds, *, scopes: Iterable[str], has_cards: bool = False
) -> list[Any]:
    """Changes whenever the lists of resources and templates do."""
    resources = listed_resources(catalogue, bounds, scopes=scopes, has_cards=has_cards)
    templates = listed_templates(catalogue, bounds, scopes=scopes)
    of_servers = [one for one in (*resources.values(), *templates) if isinstance(one, ServerFeature)]
    return [
        has_cards,
        *(
            (uri, one and (one.title, one.shown_description, one.shown_icons))
            for uri, one in resources.items()
            if not isinstance(one, ServerFeature)
        ),
        *((one.served_as, one.title, one.description, one.definition) for one in of_servers),
    ]


def _of_servers(
    catalogue: ExposedCatalogue, bounds: Bounds, kind: FeatureKind, scopes: Iterable[str]
) -> Iterator[ServerFeature]:
    """Sorted by address. Reading them calls an engine, so they need the scope of its tools."""
    seen = catalogue.features_within(bounds) if Scope.RUN in scopes else ()
    return (feature for feature in seen if feature.kind == kind.value)


def _list(access: Access, cursor: str | None, has_cards: bool) -> types.ListResourcesResult:
    catalogue = current_catalogue()
    has_cards = has_cards and allows_cards(catalogue, access.bounds)
    shown = listed_resources(catalogue, access.bounds, scopes=access.scopes, has_cards=has_cards)
    listed = list(shown.items())
    positions = [
        "0" if one is None else f"1{one.tool_name}" if isinstance(one, Workflow) else f"2{uri}"
        for uri, one in listed
    ]
    begin, end, following = page_bounds(positions, cursor, settings.CATALOGUE.page_size)
    resources = [_resource(uri, described) for uri, described in listed[begin:end]]
    if has_cards and following is None:
        resources.append(CARD)
    return types.ListResourcesResult(resources=resources, next_cursor=following, ttl_ms=list_ttl_ms())


def _list_templates(access: Access, cursor: str | None) -> types.ListResourceTemplatesResult:
    listed = listed_templates(current_catalogue(), access.bounds, scopes=access.scopes)
    positions = [
        f"1{number:03}" if isinstance(one, ResourceKind) else f"2{one.served_as}"
        for number, one in enumerate(listed)
    ]
    begin, end, following = page_bounds(positions, cursor, settings.CATALOGUE.page_size)
    templates = [
        one.as_template
        if isinstance(one, ResourceKind)
        else types.ResourceTemplate(uri_template=one.served_as, **upstream.describe_resource(one))
        for one in listed[begin:end]
    ]
    return types.ListResourceTemplatesResult(
        resource_templates=templates, next_cursor=following, ttl_ms=list_ttl_ms()
    )


def _resource(uri: str, workflow: Workflow | ServerFeature | None) -> types.Resource:
    if isinstance(workflow, ServerFeature):
        meta = describe_app(workflow) if workflow.is_shown_app else {}
        return types.Resource(uri=uri, **upstream.describe_resource(workflow), _meta=meta or None)
    if workflow is None:
        whole = RESOURCES[0]
        return types.Resource(
            uri=uri, name=whole.name, title=whole.title, description=whole.description, mime_type=JSON
        )
    return types.Resource(
        uri=uri,
        name=workflow.tool_name,
        title=workflow.title,
        description=shorten(workflow.shown_description) or None,
        mime_type=JSON,
        icons=icon_models(workflow.shown_icons),
    )


def _read(uri: str, access: Access) -> Found | upstream.Located:
    """A server's resource is only located. Raises UnknownResource, MCPError for a missing scope."""
    if scheme_of(uri) not in OWN_SCHEMES and len(uri) <= MAX_ADDRESS_LENGTH and access.allows(Scope.RUN):
        seen = current_catalogue().features_within(access.bounds)
        # Templates of other servers must not take over the address of an app.
        apps = [one for one in seen if one.is_shown_app]
        if (app := upstream.find_feature(apps, FeatureKind.RESOURCE, uri)) is not None:
            upstream.count_read(access)
            return _read_app(app, uri)
        if (located := upstream.find_resource(seen, uri)) is not None:
            upstream.count_read(access)
            if located.uri.startswith(SCHEME) and located.feature.source.shows_apps:
                raise UnknownResource(f"{uri[:SHOWN]} is an app that no curator has accepted.")
            return located
    kind, variables = find_kind(uri)
    if not kind.is_open_to(access.scopes):
        lack = describe_lack(*sorted(kind.scopes))
        raise MCPError(types.INVALID_PARAMS, f"This token may not read {kind.template}: {lack}")
    return kind.read(Reading(access, uri, variables))


def _read_app(app: ServerFeature, uri: str) -> Found:
    """Reads what a curator has accepted, never the server's present version."""
    if (contents := read_app(app, uri)) is None:
        raise UnknownResource(f"The HTML of {uri[:SHOWN]} is not known yet: refresh {app.source.name}.")
    return Found([contents])


RESOURCES = (*WORKFLOW_RESOURCES, *EXECUTION_RESOURCES)
OWN_SCHEMES = frozenset(scheme_of(str(kind.template)) for kind in RESOURCES)
MAX_ADDRESS_LENGTH = 2_000
SHOWN = 100


def find_kind(uri: str) -> tuple[ResourceKind, Mapping[str, str]]:
    """Returns the kind with the variables of its template. Raises UnknownResource."""
    if len(uri) > MAX_ADDRESS_LENGTH:
        raise UnknownResource(
            f"The address has {len(uri):,} characters. Addresses of this server have at most "
            f"{MAX_ADDRESS_LENGTH:,}."
        )
    scheme, _, rest = uri.partition(":")
    # Only the scheme ignores case (RFC 3986).
    address = f"{scheme.lower()}:{rest}"
    for kind in RESOURCES:
        found = kind.template.match(address)
        if found is not None and "#" not in address:
            _check_query(kind, address)
            return kind, {name: value for name, value in found.items() if isinstance(value, str)}
    known = ", ".join(str(kind.template) for kind in RESOURCES)
    raise UnknownResource(
        f"Unknown resource: {uri[:SHOWN]!r}. The product's own addresses are {known}; resources/list and "
        "resources/templates/list have all."
    )


def _check_query(kind: ResourceKind, address: str) -> None:
    """Templates ignore unknown parameters when they match."""
    _, _, query = address.partition("?")
    names = [pair.partition("=")[0] for pair in query.split("&") if pair]
    known = kind.template.query_variable_names
    if unknown := [name for name in names if name not in known]:
        raise UnknownResource(f"Unknown parameter {unknown[0][:SHOWN]!r}. The address is {kind.template}.")
    if len(names) > len(set(names)):
        raise UnknownResource(f"A parameter occurs twice. The address is {kind.template}.")
