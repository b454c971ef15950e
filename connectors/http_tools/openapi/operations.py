"""A document's operations, the tools that they become, and how the API authenticates their requests."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import ValidationError

from connectors.formats.json import as_object
from connectors.formats.json_schema import pointer_of, types_of
from connectors.http_tools.openapi.document import (
    LONGEST_TITLE,
    Ambiguous,
    Document,
    NoTool,
    RefusedOperation,
    check_server,
    description_of,
    plain_text,
    quoted,
)
from connectors.http_tools.openapi.media_types import is_json
from connectors.http_tools.openapi.parameters import Argument, Bodies, Body, Parameters, collect_arguments
from connectors.http_tools.openapi.schemas import Schemas, size_of
from connectors.http_tools.tool import (
    EXTRA_KEYS,
    LONGEST_KEY_NAME,
    MOST_HEADERS,
    ApiConfig,
    Constant,
    FieldMappings,
    ToolConfig,
)
from connectors.network.headers import NOISE, TELLING, TOKEN, can_carry_a_key

METHODS = ("get", "put", "post", "delete", "patch", "head")
OTHERS = ("options", "trace", "query")
MAX_TAGS = 20
LONGEST_TAG = 100
LONGEST = 255
UNFIT = re.compile(r"[^A-Za-z0-9]+")
MAX_FIELDS = 20
MAX_BYTES = 8_192  # Of an output schema: each agent that sees the tool pays for it
MAX_OPERATIONS = 5_000
LONGEST_API = 80
WITHOUT_BODY = frozenset({"GET", "HEAD"})
NOT_DESCRIBED = (
    "It requires {}, which the document does not describe. The source's authentication is used: set it to "
    "what the API requires."
)
Settings = dict[str, Any]  # A source's `authentication`, extra keys and headers, without secrets
SECRETS = {
    "token": "bearer",
    "password": "basic",
    "api_key": "api_key",
    "oauth_client_secret": "oauth_client_credentials",
}
NAMES = {
    "none": "no authentication",
    "api_key": "an API key",
    "bearer": "a bearer token",
    "basic": "a user name and a password",
    "oauth_client_credentials": "OAuth client credentials",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation; `objection` is a known reason why it cannot be a tool."""

    method: str  # In capitals
    path: str
    pointer: str
    raw: dict[str, Any] = field(default_factory=dict)
    item: dict[str, Any] = field(default_factory=dict)
    """The path item, with parameters and servers of all its operations."""
    item_pointer: str = ""
    objection: NoTool | None = None

    @property
    def id(self) -> str:
        given = self.raw.get("operationId")
        return " ".join(given.split()) if isinstance(given, str) else ""

    @property
    def tags(self) -> list[str]:
        given = self.raw.get("tags")
        tags = given if isinstance(given, list) else []
        texts = (tag.strip()[:LONGEST_TAG] for tag in tags if isinstance(tag, str))
        return list(dict.fromkeys(filter(None, texts)))[:MAX_TAGS]


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which operations to read; all conditions must hold."""

    only: tuple[str, ...] = ()
    """Patterns for ids, paths, or methods and paths: `issues/*`, `/repos/*`, `GET /repos/*`."""
    tags: tuple[str, ...] = ()
    deprecated: bool = False

    def names(self, operation: Operation) -> bool:
        """Whether it is chosen, deprecated or not."""
        known = (operation.id, operation.path, f"{operation.method} {operation.path}")
        by_name = not self.only or any(fnmatchcase(name, pattern) for name in known for pattern in self.only)
        return by_name and (not self.tags or not {*self.tags}.isdisjoint(operation.tags))

    def left_over(self, operations: Collection[Operation]) -> list[str]:
        """Conditions that match no operation, such as a misspelt pattern."""
        if not (self.only or self.tags):
            return []
        names = {operation.id for operation in operations}
        for operation in operations:
            names |= {operation.path, f"{operation.method} {operation.path}"}
        tags = {tag for operation in operations for tag in operation.tags}
        idle = [pattern for pattern in self.only if not any(fnmatchcase(name, pattern) for name in names)]
        return idle + [tag for tag in self.tags if tag not in tags]


def operations_of(document: Document) -> Iterator[Operation]:
    paths = as_object(document.value.get("paths"))
    for path, raw in paths.items():
        pointer = f"/paths{pointer_of([path])}"
        if path.startswith("x-"):
            continue
        try:
            if isinstance(paths, Ambiguous) and paths.repeats(path):
                raise NoTool(f"The path {quoted(path)} occurs twice.", "/paths")
            # If methods are duplicated, the others are still usable.
            is_usable = isinstance(raw, Ambiguous) and "$ref" not in raw
            item, pointer = (raw, pointer) if is_usable else document.object_at(raw, pointer)
        except NoTool as refusal:
            yield Operation(method="*", path=path, pointer=pointer, objection=refusal)
            continue
        for method in item:
            if method in METHODS or method in OTHERS:
                yield _operation(document, method, path, item, pointer)


def _operation(document: Document, method: str, path: str, item: dict[str, Any], pointer: str) -> Operation:
    at = f"{pointer}/{method}"
    raw, objection = item[method], None
    try:
        if isinstance(item, Ambiguous) and item.repeats(method):
            raise NoTool(f"The key {quoted(method)} occurs twice in one object.", pointer)
        raw, at = document.object_at(raw, at)
        if method in OTHERS:
            raise NoTool(f"The method {method.upper()} is not supported.", at)
        if not path.startswith("/"):
            raise NoTool("Its path does not begin with a slash.", pointer)
    except NoTool as refusal:
        objection = refusal
    return Operation(
        method=method.upper(),
        path=path,
        pointer=at,
        raw=as_object(raw),
        item=item,
        item_pointer=pointer,
        objection=objection,
    )


class Names:
    """Gives each operation a unique name, the same at every import."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, operation: Operation) -> str:
        """Its id, else method and path; if taken, all of these."""
        of_path = UNFIT.sub("_", f"{operation.method.lower()} {operation.path}").strip("_")
        given = "".join(filter(str.isprintable, operation.id))
        candidates = [given, of_path] if given else [of_path]
        candidates.append(f"{given or of_path}_{of_path}")
        for candidate in candidates:
            if (name := candidate[:LONGEST].strip()) and name not in self._taken:
                break
        else:
            number = 2
            while (name := f"{candidates[0][: LONGEST - 8]}_{number}") in self._taken:
                number += 1
        self._taken.add(name)
        return name


def split_query(path: str, pointer: str) -> tuple[str, list[Constant]]:
    """The path, and the constants in its query. Raises NoTool. A fragment distinguishes operations of one
    address and is never sent."""
    plain, mark, query = path.partition("#")[0].partition("?")
    if "{" in query:
        raise NoTool(f"Its path {quoted(path)} has a parameter after the '?'.", pointer)
    if not mark:
        return plain, []
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise NoTool(f"Its path {quoted(path)} has an invalid query after the '?'.", pointer) from None
    return plain, [Constant(place="query", name=name, value=value) for name, value in pairs if name]


CONDITIONS = {"if-match", "if-none-match", "if-range"}  # Headers of requests that have an ETag


def takes_etags(document: Document, operations: Collection[Operation]) -> bool:
    """Whether some request can name the ETag of an earlier response."""
    lists = [level.get("parameters") for one in operations for level in (one.raw, one.item)]
    shared = as_object(as_object(document.value.get("components")).get("parameters"))
    given = [*shared.values(), *(one for some in lists if isinstance(some, list) for one in some)]
    return any(isinstance(one, dict) and str(one.get("name")).lower() in CONDITIONS for one in given)


def response_headers_of(document: Document, responses: Any, pointer: str) -> list[str]:
    """Those of successes, in lower case, that are neither always shown nor of no use to agents."""
    found: set[str] = set()
    for code, raw in as_object(responses).items():
        with suppress(NoTool):
            answer = document.object_at(raw, f"{pointer}/{code}")[0] if str(code).startswith("2") else {}
            found.update(map(str.lower, filter(TOKEN.fullmatch, as_object(answer.get("headers")))))
    found -= {"etag", "last-modified"}
    return [name for name in sorted(found) if not (NOISE.search(name) or TELLING.search(name))]


def output_schema_of(
    document: Document, schemas: Schemas, responses: Any, pointer: str
) -> dict[str, Any] | None:
    """None unless all successful responses have the same JSON object, with a schema that is small enough."""
    answers = responses.items() if isinstance(responses, dict) else ()
    try:
        found = [
            _schema_of(document, raw, f"{pointer}/{code}")
            for code, raw in answers
            if str(code).startswith("2")
        ]
        if not found or found[0] is None or any(one is None or one[0] != found[0][0] for one in found):
            return None
        raw, at = found[0]
        if at not in schemas.answers:
            schemas.answers[at] = _converted(document, schemas, raw, at)
        return schemas.answers[at]
    except NoTool:
        return None


def _schema_of(document: Document, raw: Any, pointer: str) -> tuple[Any, str] | None:
    answer, pointer = document.object_at(raw, pointer)
    for name, media in as_object(answer.get("content")).items():
        if is_json(name) and isinstance(media, dict) and isinstance(media.get("schema"), dict):
            schema, at = media["schema"], f"{pointer}/content/schema"
            return document.object_at(schema, at) if schema.keys() == {"$ref"} else (schema, at)
    return None


def _converted(document: Document, schemas: Schemas, raw: Any, pointer: str) -> dict[str, Any] | None:
    if types_of(raw, document.object_at, pointer) != {"object"} or raw.get("nullable") is True:
        return None
    converted = schemas.convert(raw, pointer)
    if not isinstance(converted.schema, dict):
        return None
    definitions = schemas.definitions_for(converted.needs, parts=converted.parts)
    schema = converted.schema | {"type": "object"}
    size = size_of(schema)
    if definitions:
        schema["$defs"] = definitions
        size += schemas.size_of_definitions(definitions)
    return schema if size <= MAX_BYTES else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadTool:
    """An operation as a tool, without the source's credentials."""

    config: ToolConfig
    operation: Operation
    notes: list[str]  # Parts of the operation that the tool does not support, in sentences


@dataclass(kw_only=True, slots=True)
class ReadTools:
    """Each operation of a document once."""

    tools: list[ReadTool] = field(default_factory=list)
    refused: list[RefusedOperation] = field(default_factory=list)
    deprecated: int = 0
    not_chosen: int = 0
    idle: list[str] = field(default_factory=list)


def read_tools(
    document: Document,
    *,
    base_url: str,
    settings: Settings,
    selection: Selection,
    usable_pattern: Callable[[str], bool],
) -> ReadTools:
    """Never raises. `settings`: how the source authenticates."""
    reader = _Reader(
        document=document,
        base_url=base_url,
        settings=settings,
        inputs=Schemas(document, "request", usable_pattern),
        outputs=Schemas(document, "response", usable_pattern),
    )
    operations = list(operations_of(document))
    reader.descriptions.update(map(_words_of, operations))
    if takes_etags(document, operations):
        reader.usual_headers.append("etag")
    found, names, left = ReadTools(idle=selection.left_over(operations)), Names(), MAX_OPERATIONS
    for operation in operations:
        # A name is taken whether the operation is chosen or not, so that it is the same at the next import.
        name = names.take(operation)
        if not selection.names(operation):
            found.not_chosen += 1
        elif operation.raw.get("deprecated") is True and not selection.deprecated:
            found.deprecated += 1
        else:
            reader.read(operation, name, found, is_one_too_many=left <= 0)
            left -= 1
    return found


def refusal_of(operation: Operation, reason: str, pointer: str = "") -> RefusedOperation:
    return RefusedOperation(
        method=operation.method,
        path=operation.path,
        operation_id=operation.id,
        pointer=pointer or operation.pointer,
        reason=reason,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    document: Document
    base_url: str
    settings: Settings
    inputs: Schemas
    outputs: Schemas
    parameters: dict[str, Argument] = field(default_factory=dict)  # By pointer
    descriptions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many operations share a summary and description."""
    usual_headers: list[str] = field(default_factory=list)  # Of responses

    def read(self, operation: Operation, name: str, found: ReadTools, *, is_one_too_many: bool) -> None:
        try:
            if is_one_too_many:
                raise NoTool(f"Only {MAX_OPERATIONS:,} operations of a document are read; select fewer.")
            found.tools.append(self._tool(operation, name))
        except NoTool as refusal:
            found.refused.append(refusal_of(operation, refusal.reason, refusal.pointer))

    def _tool(self, operation: Operation, name: str) -> ReadTool:
        if operation.objection is not None:
            raise operation.objection
        raw, at = operation.raw, operation.pointer
        levels = ((raw, at), (operation.item, operation.item_pointer))
        check_server(self.document, *levels, base_url=self.base_url)
        notes: list[str] = []
        anonymous = is_anonymous(self.document, raw, at, self.settings, notes)
        config = self._config(operation, name, notes, anonymous=anonymous)
        return ReadTool(config=config, operation=operation, notes=notes)

    def _config(self, operation: Operation, name: str, notes: list[str], *, anonymous: bool) -> ToolConfig:
        raw, at = operation.raw, operation.pointer
        path, constants = split_query(operation.path, operation.item_pointer)
        # The operation's parameters override those of its path.
        levels = ((operation.item, operation.item_pointer), (raw, at))
        lists = [(item.get("parameters"), f"{place}/parameters") for item, place in levels]
        # A parameter that the path itself sets is no argument.
        filled = key_places(self.settings) | {("query", constant.name) for constant in constants}
        read = Parameters(self.document, self.inputs, filled, notes, self.parameters)
        parameters = read.arguments(path, lists)
        body = self._body(operation, notes)
        told = response_headers_of(self.document, raw.get("responses"), f"{at}/responses")
        arguments = collect_arguments([*parameters, *body.arguments], self.inputs, body.demands, notes)
        try:
            return ToolConfig(
                name=name,
                title=plain_text(raw.get("summary"), LONGEST_TITLE),
                description=self._description(operation),
                tags=operation.tags,
                api=ApiConfig(
                    endpoint=f"{self.base_url}{path}",
                    method=operation.method,  # type: ignore[arg-type]
                    body_format=body.body_format,
                    anonymous=anonymous,
                    response_headers=[*self.usual_headers, *told][:MOST_HEADERS],
                ),
                input_schema=arguments.schema,
                output_schema=output_schema_of(
                    self.document, self.outputs, raw.get("responses"), f"{at}/responses"
                ),
                # Few APIs answer exactly as documented.
                output_is_promised=False,
                field_mappings=FieldMappings(
                    input=arguments.places, constants=constants + read.constants + body.constants
                ),
            )
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, problem["loc"]))
            raise NoTool(f"It cannot be a tool: {where}: {problem['msg']}.") from None

    def _description(self, operation: Operation) -> str:
        """With the API's name, and with method and path if operations share a description."""
        call = f"{operation.method} {operation.path}"
        description = description_of(
            operation.raw.get("summary"), operation.raw.get("description"), otherwise=call
        )
        api = plain_text(self.document.title, LONGEST_API) or urlsplit(self.base_url).hostname or ""
        is_shared = self.descriptions[_words_of(operation)] > 1 and call not in description
        said = [api] if api.casefold() not in description.casefold() else []
        said += [call] if is_shared else []
        return f"{description}\n\nAPI: {', '.join(said)}" if said else description

    def _body(self, operation: Operation, notes: list[str]) -> Body:
        if "requestBody" not in operation.raw:
            return Body()
        bodies = Bodies(self.document, self.inputs, notes)
        raw, at = operation.raw["requestBody"], f"{operation.pointer}/requestBody"
        if operation.method not in WITHOUT_BODY:
            return bodies.body(raw, at)
        with suppress(NoTool):
            if bodies.is_empty(raw, at):
                return Body()
        notes.append(f"Its body is left out: {operation.method} requests cannot have a body.")
        return Body()


def _words_of(operation: Operation) -> tuple[str, str]:
    return str(operation.raw.get("summary")), str(operation.raw.get("description"))


@dataclass(frozen=True, slots=True)
class Scheme:
    """A security scheme, and settings that satisfy it, the most likely first."""

    name: str
    fulfilled_by: list[Settings]
    objection: str = ""
    is_described: bool = True  # Otherwise only the person who knows the API can say what it requires

    @property
    def key(self) -> tuple[str, str] | None:
        """Where a key of this scheme is sent; None for other schemes."""
        wanted = self.fulfilled_by[0] if self.fulfilled_by else {}
        return (wanted["api_key_in"], wanted["api_key_name"]) if "api_key_name" in wanted else None

    def accepts(self, settings: Settings) -> bool:
        if self.key is not None and _place(*self.key) in key_places(settings):
            return True
        kinds = {wanted["authentication"] for wanted in self.fulfilled_by} - {"api_key"}
        return settings["authentication"] in kinds


def scheme_of(document: Document, name: str) -> Scheme:
    components = document.value.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, dict) else None
    if not isinstance(schemes, dict) or name not in schemes:
        return Scheme(name, [], "which the document does not describe", is_described=False)
    try:
        raw, _ = document.object_at(schemes[name], "/components/securitySchemes")
    except NoTool as refusal:
        return Scheme(name, [], f"which cannot be read: {refusal.reason.rstrip('.')}")
    fulfilled_by = list(_fulfilments(raw))
    words = [str(raw[key])[:40] for key in ("type", "in", "scheme") if isinstance(raw.get(key), str)]
    kind = " ".join(words) or "of an unknown type"
    objection = "" if fulfilled_by else f"which is {kind} and not supported"
    return Scheme(name, fulfilled_by, objection)


def _fulfilments(raw: dict[str, Any]) -> Iterator[Settings]:
    match str(raw.get("type")), str(raw.get("scheme", "")).lower(), raw.get("in"):
        case "apiKey", _, "header" | "query" | "cookie" as where if _can_be_key(
            where, name := raw.get("name", "")
        ):
            yield {"authentication": "api_key", "api_key_in": str(where), "api_key_name": name}
            if where == "header" and name.lower() == "authorization":
                # A key in this header is nearly always meant as "Bearer ...".
                yield {"authentication": "bearer"}
                yield {"authentication": "oauth_client_credentials"}
        case "http", "bearer", _:
            yield {"authentication": "bearer"}
            yield {"authentication": "oauth_client_credentials"}
        case "http", "basic", _:
            yield {"authentication": "basic"}
        case "oauth2", _, _:
            yield from _oauth(raw.get("flows"))
        case "openIdConnect", _, _:
            yield {"authentication": "bearer"}


def _can_be_key(where: Any, name: Any) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_KEY_NAME:
        return False
    return where == "query" or (
        TOKEN.fullmatch(name) is not None if where == "cookie" else can_carry_a_key(name)
    )


def _oauth(flows: Any) -> Iterator[Settings]:
    """Every flow ends in a bearer token; the product requests one by client credentials only."""
    flow = flows.get("clientCredentials") if isinstance(flows, dict) else None
    if isinstance(flow, dict):
        url = flow.get("tokenUrl")
        # A relative URL must be completed in the source's settings.
        known = {"oauth_token_url": url} if isinstance(url, str) and "://" in url else {}
        yield {"authentication": "oauth_client_credentials"} | known
    yield {"authentication": "bearer"}


def settings_for(document: Document, secrets: frozenset[str]) -> Settings:
    """As the given secrets require, else as most operations require."""
    # Other credentials are easier to get, and last longer, than the cookie of a session.
    wanted: Counter[tuple[tuple[str, str], ...]] = Counter()
    for alternatives in _all_requirements(document):
        for position, settings in enumerate(sorted(_choices(document, alternatives), key=_uses_a_cookie)):
            wanted[tuple(sorted(settings.items()))] += 1 if position else 2
    types = {SECRETS[name] for name in secrets & SECRETS.keys()}
    by_votes = sorted(wanted.items(), key=lambda one: (-one[1], _uses_a_cookie(dict(one[0]))))
    ranked = [dict(settings) for settings, _ in by_votes]
    if types:
        fitting = [settings for settings in ranked if settings["authentication"] in types]
        return fitting[0] if fitting else {"authentication": min(types)}
    return ranked[0] if ranked else {"authentication": "none"}


def _uses_a_cookie(settings: Settings) -> bool:
    return "cookie" in (settings.get(f"{key}_in") for key in ("api_key", *EXTRA_KEYS))


def is_anonymous(
    document: Document, operation: dict[str, Any], pointer: str, settings: Settings, notes: list[str]
) -> bool:
    """Whether the operation is called without the source's credentials. True if the document requires none,
    or allows none besides credentials that the source lacks. Without a statement in the document, they are
    sent, and also, with a note, if it does not describe the scheme that it requires. Raises NoTool if the
    source has nothing that the operation accepts."""
    own, usual = "security" in operation, document.value.get("security")
    where = f"{pointer}/security" if own else "/security"
    requirements = operation["security"] if own else usual
    if not isinstance(requirements, list):
        return False
    if not requirements:
        # An empty list revokes the document's requirement; many documents have one without a requirement.
        return own and bool(usual)
    wanted = [requirement for requirement in requirements if requirement != {}]
    unknown = [_undescribed(document, requirement) for requirement in wanted]
    # Those that the document describes come first: what they require is certain.
    pairs = sorted(zip(wanted, unknown, strict=True), key=lambda pair: len(pair[1]))
    objections = []
    for requirement, undescribed in pairs:
        if undescribed and {} in requirements:
            continue
        objection = _objection(document, requirement, settings)
        if not objection:
            notes += [NOT_DESCRIBED.format(quoted(name)) for name in undescribed]
            return False
        objections.append(objection)
    if {} in requirements:
        return True
    raise NoTool(f"It requires {'; or '.join(dict.fromkeys(objections))}.", where)


def _undescribed(document: Document, requirement: Any) -> list[str]:
    names = requirement if isinstance(requirement, dict) else ()
    return [name for name in names if not scheme_of(document, name).is_described]


def key_places(settings: Settings) -> frozenset[tuple[str, str]]:
    """The kind of place and the name, in lower case for headers, of each key and header of the source."""
    headers = (("header", name.lower()) for name in settings.get("extra_headers", ()))
    own = ("api_key",) if settings["authentication"] == "api_key" else ()
    return frozenset(headers) | {
        _place(settings.get(f"{key}_in", "header"), name)
        for key in (*own, *EXTRA_KEYS)
        if (name := settings.get(f"{key}_name"))
    }


def _place(where: str, name: str) -> tuple[str, str]:
    return where, name.lower() if where == "header" else name


def _objection(document: Document, requirement: Any, settings: Settings) -> str:
    if not isinstance(requirement, dict):
        return "something that is not a security requirement"
    found = [scheme_of(document, name) for name in requirement]
    schemes = [scheme for scheme in found if scheme.is_described]
    if unusable := next((scheme for scheme in schemes if scheme.objection), None):
        return f"{quoted(unusable.name)}, {unusable.objection}"
    unmet = [scheme for scheme in schemes if not scheme.accepts(settings)]
    if not unmet:
        return ""
    others = " and ".join(quoted(scheme.name) for scheme in schemes if scheme not in unmet)
    wanted = " and ".join(f"{quoted(scheme.name)} ({_kinds_of(scheme)})" for scheme in unmet)
    beside = f" in addition to {others}" if others else ""
    return f"{wanted}{beside}, but the source has {_present(settings)}{_advice(unmet)}"


def _kinds_of(scheme: Scheme) -> str:
    return " or ".join(dict.fromkeys(NAMES[one["authentication"]] for one in scheme.fulfilled_by))


def _present(settings: Settings) -> str:
    """`an API key in X-Key and extra keys in B, C`"""
    kind = settings["authentication"]
    own = NAMES[kind] + (f" in {settings['api_key_name']}" if kind == "api_key" else "")
    extra = ", ".join(name for key in EXTRA_KEYS if (name := settings.get(f"{key}_name")))
    return f"{own} and extra keys in {extra}" if extra else own


def _advice(unmet: list[Scheme]) -> str:
    places = [f"{scheme.key[1]} ({scheme.key[0]})" for scheme in unmet if scheme.key is not None]
    if len(places) < len(unmet):
        return ""
    return f" (add {' and '.join(places)} to the source as an extra key, and import again)"


def _all_requirements(document: Document) -> Iterator[list[Any]]:
    """Each operation's requirements; unreadable ones are reported later."""
    usual = document.value.get("security")
    for item in _values(document.value.get("paths")):
        for method in METHODS:
            operation = item.get(method) if isinstance(item, dict) else None
            if isinstance(operation, dict):
                said = operation.get("security", usual)
                yield said if isinstance(said, list) else []


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []


def _choices(document: Document, alternatives: list[Any]) -> Iterator[Settings]:
    for requirement in alternatives:
        if isinstance(requirement, dict) and requirement:
            yield from _together([scheme_of(document, name) for name in requirement])


def _together(schemes: list[Scheme]) -> Iterator[Settings]:
    """The settings of a source that satisfies all schemes, if there can be one: with at most one scheme that
    is not a key in a header or in the query."""
    if any(scheme.objection for scheme in schemes):
        return
    main = next((scheme for scheme in schemes if scheme.key is None), schemes[0])
    settings = dict(main.fulfilled_by[0])
    extra = {scheme.key: None for scheme in schemes if not scheme.accepts(settings)}
    if len(extra) > len(EXTRA_KEYS):
        return
    for setting, key in zip(EXTRA_KEYS, extra, strict=False):
        if key is None or (main.key is None and _place(*key) == ("header", "authorization")):
            return
        settings |= {f"{setting}_in": key[0], f"{setting}_name": key[1]}
    yield settings
