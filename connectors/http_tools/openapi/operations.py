"""A document's operations, the tools that they become, and how the API authenticates their requests."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain, count
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from connectors.definitions import WorkflowDefinition, explain
from connectors.formats.json import as_object, write_json
from connectors.formats.json_schema import pointer_of, types_of
from connectors.http_tools.checks import checked, define
from connectors.http_tools.openapi.document import (
    MAX_TITLE_LENGTH,
    Ambiguous,
    Document,
    Located,
    NoTool,
    RefusedOperation,
    check_server,
    description_of,
    note_on_nothing,
    plain_text,
    quoted,
)
from connectors.http_tools.openapi.parameters import (
    Argument,
    Bodies,
    Body,
    Parameters,
    collect_arguments,
    read_path,
)
from connectors.http_tools.openapi.schemas import Schemas
from connectors.http_tools.request import is_json
from connectors.http_tools.tool import (
    EXTRA_KEYS,
    MAX_HEADERS,
    MAX_KEY_NAME,
    SAFE_METHODS,
    HttpOperation,
    InvalidTool,
    ascii_path,
)
from connectors.network.headers import NOISE, TELLING, TOKEN, can_carry_a_key

METHODS = ("get", "put", "post", "delete", "patch", "head")
OTHERS = ("options", "trace", "query")
MAX_NAME_LENGTH = 255
MAX_BYTES = 8_192  # Of an output schema: each agent that sees the tool pays for it
MAX_OPERATIONS = 5_000
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
    items: list[Located] = field(default_factory=list)
    """The path item, with parameters and servers of all its operations, and those that it refers to."""
    objection: NoTool | None = None

    @property
    def id(self) -> str:
        given = self.raw.get("operationId")
        return " ".join(given.split()) if isinstance(given, str) else ""

    @property
    def known_as(self) -> tuple[str, ...]:
        return self.id, self.path, f"{self.method} {self.path}"

    @property
    def tags(self) -> list[str]:
        given = self.raw.get("tags")
        tags = given if isinstance(given, list) else []
        texts = (tag.strip()[:100] for tag in tags if isinstance(tag, str))
        return list(dict.fromkeys(filter(None, texts)))[:20]


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Selects the operations to read; all conditions must hold."""

    only: tuple[str, ...] = ()
    """Patterns for ids, paths, or methods and paths: `issues/*`, `/repos/*`, `GET /repos/*`."""
    tags: tuple[str, ...] = ()
    deprecated: bool = False

    def names(self, operation: Operation) -> bool:
        """Returns True if it is selected, deprecated or not."""
        names = operation.known_as
        by_name = not self.only or any(fnmatchcase(name, pattern) for name in names for pattern in self.only)
        return by_name and (not self.tags or not {*self.tags}.isdisjoint(operation.tags))

    def left_over(self, operations: Collection[Operation]) -> list[str]:
        """Conditions that match no operation, such as a misspelt pattern."""
        names = {name for operation in operations for name in operation.known_as}
        tags = {tag for operation in operations for tag in operation.tags}
        idle = [pattern for pattern in self.only if not any(fnmatchcase(name, pattern) for name in names)]
        return idle + [tag for tag in self.tags if tag not in tags]


def operations_of(document: Document) -> Iterator[Operation]:
    paths = as_object(document.value.get("paths"))
    for path, raw in paths.items():
        pointer = f"/paths{pointer_of([path])}"
        if path.startswith("x-") and as_object(raw).keys().isdisjoint(METHODS):
            continue
        try:
            if isinstance(paths, Ambiguous) and paths.repeats(path):
                raise NoTool(f"The path {quoted(path)} occurs twice.", "/paths")
            items = document.path_item_at(raw, pointer)
        except NoTool as refusal:
            yield Operation(method="*", path=path, pointer=pointer, objection=refusal)
            continue
        yield from _operations_at(document, path, items)


def _operations_at(document: Document, path: str, items: list[Located]) -> Iterator[Operation]:
    found: dict[str, tuple[Any, str]] = {}  # By method: the path item and the pointer of its first operation
    for item, pointer in items:
        # A key that is no method and has responses is a vendor's, or of a later OpenAPI.
        keys = [key for key in item if key.lower() in METHODS + OTHERS or "responses" in as_object(item[key])]
        further = as_object(item.get("additionalOperations"))
        for holder, key, own in (
            *((item, key, f"{pointer}{pointer_of([key])}") for key in keys),
            *((further, key, f"{pointer}/additionalOperations{pointer_of([key])}") for key in further),
        ):
            method, raw = key.upper(), holder[key]
            within, first = found.setdefault(method, (item, own))
            if within is not item:
                continue  # What stands beside a reference replaces its target's.
            objection, at = None, own
            try:
                if first != own or (isinstance(holder, Ambiguous) and holder.repeats(key)):
                    raise NoTool(f"The method {method} occurs twice in one path.", pointer)
                raw, at = document.object_at(raw, own)
                if method.lower() not in METHODS:
                    raise NoTool(f"The method {method} is not supported.", at)
                if not path.startswith("/"):
                    raise NoTool("Its path does not begin with a slash.", pointer)
            except NoTool as refusal:
                objection = refusal
            yield Operation(
                method=method, path=path, pointer=at, raw=as_object(raw), items=items, objection=objection
            )


def name_of(operation: Operation, taken: Collection[str]) -> str:
    """A unique name, the same at every import: its id, else method and path; if taken, all of these."""
    of_path = re.sub(r"[^A-Za-z0-9]+", "_", f"{operation.method.lower()} {operation.path}").strip("_")
    given = "".join(filter(str.isprintable, operation.id))
    candidates = [*filter(None, [given]), of_path, f"{given or of_path}_{of_path}"]
    numbered = (f"{candidates[0][: MAX_NAME_LENGTH - 8]}_{number}" for number in count(2))
    names = (one[:MAX_NAME_LENGTH].strip() for one in chain(candidates, numbered))
    return next(name for name in names if name and name not in taken)


def takes_etags(document: Document, operations: Collection[Operation]) -> bool:
    """Returns True if some request can name the ETag of an earlier response."""
    levels = (level for one in operations for level in (one.raw, *(item for item, _ in one.items)))
    lists = [level.get("parameters") for level in levels]
    shared = as_object(as_object(document.value.get("components")).get("parameters"))
    given = [*shared.values(), *(one for some in lists if isinstance(some, list) for one in some)]
    conditions = {"if-match", "if-none-match", "if-range"}
    return any(isinstance(one, dict) and str(one.get("name")).lower() in conditions for one in given)


def response_headers_of(document: Document, responses: Any, pointer: str) -> list[str]:
    """Returns those of successes, in lower case, that are neither always shown nor of no use to agents."""
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
    successes = [(code, raw) for code, raw in as_object(responses).items() if str(code).startswith("2")]
    with suppress(NoTool):
        found = [_schema_of(document, raw, f"{pointer}/{code}") for code, raw in successes]
        if found and found[0] and all(one is not None and one[0] == found[0][0] for one in found):
            raw, at = found[0]
            if at not in schemas.answers:
                schemas.answers[at] = _converted(document, schemas, raw, at)
            return schemas.answers[at]
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
    definitions = schemas.definitions_for(converted.needs, [], parts=converted.parts)
    schema = converted.schema | {"type": "object"}
    size = len(write_json(schema))
    if definitions:
        schema["$defs"] = definitions
        size += schemas.size_of_definitions(definitions)
    return schema if size <= MAX_BYTES else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadTool:
    """An operation as a tool, without the source's credentials."""

    definition: WorkflowDefinition
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
    notes: list[str] = field(default_factory=list)  # On the whole document


def read_tools(
    document: Document,
    *,
    base_url: str,
    settings: Settings,
    selection: Selection,
    usable_pattern: Callable[[str], bool],
) -> ReadTools:
    """Never raises. `settings`: how the source authenticates."""
    operations = list(operations_of(document))
    reader = _Reader(
        document=document,
        base_url=base_url,
        settings=settings,
        inputs=Schemas(document, "request", usable_pattern),
        outputs=Schemas(document, "response", usable_pattern),
        descriptions=Counter(map(_words_of, operations)),
    )
    if takes_etags(document, operations):
        reader.usual_headers.append("etag")
    found, names = ReadTools(idle=selection.left_over(operations)), set[str]()
    found.notes += [] if operations else [note_on_nothing(document)]
    for operation in operations:
        # A name is taken whether the operation is chosen or not, so that it is the same at the next import.
        name = name_of(operation, names)
        names.add(name)
        if not selection.names(operation):
            found.not_chosen += 1
        elif operation.raw.get("deprecated") is True and not selection.deprecated:
            found.deprecated += 1
        elif len(found.tools) + len(found.refused) >= MAX_OPERATIONS:
            reason = f"Only {MAX_OPERATIONS:,} operations of a document are read; select fewer."
            found.refused.append(refusal_of(operation, reason))
        else:
            try:
                found.tools.append(reader.tool(operation, name))
            except NoTool as refusal:
                found.refused.append(refusal_of(operation, refusal.reason, refusal.pointer))
            except ValidationError as error:
                # A name from the path may be too long for a place.
                found.refused.append(refusal_of(operation, f"It cannot be a tool: {explain(error)}."))
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
    descriptions: Counter[tuple[str, str]]  # How many operations share a summary and description
    parameters: dict[tuple[str, str], Argument] = field(default_factory=dict)  # As `Parameters.known`
    usual_headers: list[str] = field(default_factory=list)  # Of responses

    def tool(self, operation: Operation, name: str) -> ReadTool:
        """Raises NoTool."""
        if operation.objection is not None:
            raise operation.objection
        raw, at = operation.raw, operation.pointer
        # The operation's parameters override those of its path.
        levels = (*reversed(operation.items), (raw, at))
        check_server(self.document, *reversed(levels), base_url=self.base_url)
        notes: list[str] = []
        anonymous = is_anonymous(self.document, raw, at, self.settings, notes)
        path, constants, named = read_path(operation.path, operation.items[0][1])
        # A parameter that the path itself sets is no argument.
        filled = key_places(self.settings) | {("query", constant.name) for constant in constants}
        read = Parameters(self.document, self.inputs, filled, notes, self.parameters)
        lists = [(item.get("parameters"), f"{place}/parameters") for item, place in levels]
        parameters, body = read.arguments(named, lists), self._body(operation, notes)
        for argument in parameters:
            if argument.place.place == "path":
                path = path.replace(f"{{{argument.wanted}}}", f"{{{argument.place.name}}}")
        schema, places = collect_arguments(parameters, self.inputs, body, notes)
        told = response_headers_of(self.document, raw.get("responses"), f"{at}/responses")
        http = HttpOperation(
            method=operation.method,  # type: ignore[arg-type]
            path=ascii_path(path.rstrip()),
            arguments=places,
            constants=constants + read.constants + body.constants,
            body_format=body.body_format,
            anonymous=anonymous,
            response_headers=[*self.usual_headers, *told][:MAX_HEADERS],
            # Few APIs answer exactly as documented.
            output_is_promised=False,
            notes=notes,
        )
        outputs = output_schema_of(self.document, self.outputs, raw.get("responses"), f"{at}/responses")
        try:
            definition = define(
                checked(http, schema),
                name=name,
                title=plain_text(raw.get("summary"), MAX_TITLE_LENGTH),
                description=self._description(operation),
                tags=operation.tags,
                input_schema=schema,
                output_schema=outputs,
            )
        except InvalidTool as invalid:
            raise NoTool(" ".join(dict.fromkeys(one.message for one in invalid.problems))) from None
        return ReadTool(definition=definition, operation=operation, notes=notes)

    def _description(self, operation: Operation) -> str:
        """Adds the API's name, and method and path if operations share a description."""
        call = f"{operation.method} {operation.path}"
        description = description_of(
            operation.raw.get("summary"), operation.raw.get("description"), otherwise=call
        )
        title = as_object(self.document.value.get("info")).get("title")
        api = plain_text(title, 80) or urlsplit(self.base_url).hostname or ""
        is_shared = self.descriptions[_words_of(operation)] > 1 and call not in description
        said = [api] if api.casefold() not in description.casefold() else []
        said += [call] if is_shared else []
        return f"{description}\n\nAPI: {', '.join(said)}" if said else description

    def _body(self, operation: Operation, notes: list[str]) -> Body:
        if "requestBody" not in operation.raw:
            return Body()
        raw, at = operation.raw["requestBody"], f"{operation.pointer}/requestBody"
        is_sent = operation.method not in SAFE_METHODS
        if operation.method == "GET":
            # Few servers read the body of a GET request; some require one, such as Elasticsearch.
            with suppress(NoTool):
                is_sent = self.document.object_at(raw, at)[0].get("required") is True
        bodies = Bodies(self.document, self.inputs, notes if is_sent else [])
        if is_sent:
            body = bodies.body(raw, at)
            if operation.method == "PATCH" and body.body_format == "json" and body.arguments:
                body.remark = body.remark or "A null that the schema does not allow counts as left out."
            return body
        with suppress(NoTool):
            if not bodies.body(raw, at).arguments:
                return Body()
        notes.append(f"Its body is left out: servers ignore the body of a {operation.method} request.")
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
        """Returns the place and name of a key of this scheme; None for other schemes."""
        wanted = self.fulfilled_by[0] if self.fulfilled_by else {}
        return (wanted["api_key_in"], wanted["api_key_name"]) if "api_key_name" in wanted else None

    def accepts(self, settings: Settings) -> bool:
        if self.key is not None and _place(*self.key) in key_places(settings):
            return True
        kinds = {wanted["authentication"] for wanted in self.fulfilled_by} - {"api_key"}
        return settings["authentication"] in kinds


def scheme_of(document: Document, name: str) -> Scheme:
    schemes = as_object(as_object(document.value.get("components")).get("securitySchemes"))
    if name not in schemes:
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
    """Every flow of OAuth ends in a bearer token; the product requests one by client credentials only."""
    bearer, oauth = {"authentication": "bearer"}, {"authentication": "oauth_client_credentials"}
    match str(raw.get("type")), str(raw.get("scheme", "")).lower(), raw.get("in"):
        case "apiKey", _, "header" | "query" | "cookie" as where if _can_be_key(
            where, name := raw.get("name", "")
        ):
            yield {"authentication": "api_key", "api_key_in": str(where), "api_key_name": name}
            if where == "header" and name.lower() == "authorization":
                # A key in this header is nearly always meant as "Bearer ...".
                yield from (bearer, oauth)
        case "http", "bearer", _:
            yield from (bearer, oauth)
        case "http", "basic", _:
            yield {"authentication": "basic"}
        case "oauth2", _, _:
            flow = as_object(raw.get("flows")).get("clientCredentials")
            if isinstance(flow, dict):
                url = flow.get("tokenUrl")
                # A relative URL must be completed in the source's settings.
                yield oauth | ({"oauth_token_url": url} if isinstance(url, str) and "://" in url else {})
            yield bearer
        case "openIdConnect", _, _:
            yield bearer


def _can_be_key(where: Any, name: Any) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_KEY_NAME:
        return False
    return where == "query" or (
        TOKEN.fullmatch(name) is not None if where == "cookie" else can_carry_a_key(name)
    )


def settings_for(document: Document, secrets: frozenset[str]) -> Settings:
    """Chooses what the given secrets require, else as most operations require."""
    wanted: Counter[tuple[tuple[str, str], ...]] = Counter()
    usual = document.value.get("security")
    for operation in operations_of(document):
        requirements = operation.raw.get("security", usual) if operation.objection is None else None
        # Unreadable ones are reported later.
        choices = [
            settings
            for requirement in (requirements if isinstance(requirements, list) else ())
            if isinstance(requirement, dict) and requirement
            for settings in _together([scheme_of(document, name) for name in requirement])
        ]
        # Other credentials are easier to get, and last longer, than the cookie of a session.
        for position, settings in enumerate(sorted(choices, key=_uses_a_cookie)):
            wanted[tuple(sorted(settings.items()))] += 1 if position else 2
    by_votes = sorted(wanted.items(), key=lambda one: (-one[1], _uses_a_cookie(dict(one[0]))))
    ranked = [dict(settings) for settings, _ in by_votes]
    types = {SECRETS[name] for name in secrets & SECRETS.keys()}
    fitting = [settings for settings in ranked if not types or settings["authentication"] in types]
    return fitting[0] if fitting else {"authentication": min(types, default="none")}


def _uses_a_cookie(settings: Settings) -> bool:
    return "cookie" in (settings.get(f"{key}_in") for key in ("api_key", *EXTRA_KEYS))


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


def is_anonymous(
    document: Document, operation: dict[str, Any], pointer: str, settings: Settings, notes: list[str]
) -> bool:
    """Returns True if the operation is called without the source's credentials: the document requires none,
    or allows none besides credentials that the source lacks. Without a statement in the document, they are
    sent, and also, with a note, if it does not describe the scheme that it requires. Raises NoTool if the
    source has nothing that the operation accepts."""
    own, usual = "security" in operation, document.value.get("security")
    requirements = operation["security"] if own else usual
    if not isinstance(requirements, list):
        return False
    if not requirements:
        # An empty list revokes the document's requirement; many documents have one without a requirement.
        return own and bool(usual)
    wanted = (as_object(requirement) for requirement in requirements if requirement != {})
    alternatives = [[scheme_of(document, name) for name in names] for names in wanted]
    objections = []
    # Those that the document describes come first: what they require is certain.
    for schemes in sorted(alternatives, key=lambda schemes: sum(not one.is_described for one in schemes)):
        unknown = [scheme.name for scheme in schemes if not scheme.is_described]
        if unknown and {} in requirements:
            continue
        objection = _objection(schemes, settings)
        if not objection:
            notes += [
                f"It requires {quoted(name)}, which the document does not describe. The source's "
                "authentication is used: set it to what the API requires."
                for name in unknown
            ]
            return False
        objections.append(objection)
    if {} in requirements:
        return True
    reason = f"It requires {'; or '.join(dict.fromkeys(objections))}."
    raise NoTool(reason, f"{pointer}/security" if own else "/security")


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


def _objection(schemes: list[Scheme], settings: Settings) -> str:
    """`"key" (an API key), but the source has a bearer token`; empty if its settings satisfy all schemes that
    the document describes."""
    if not schemes:
        return "something that is not a security requirement"
    schemes = [scheme for scheme in schemes if scheme.is_described]
    if unusable := next((scheme for scheme in schemes if scheme.objection), None):
        return f"{quoted(unusable.name)}, {unusable.objection}"
    unmet = [scheme for scheme in schemes if not scheme.accepts(settings)]
    if not unmet:
        return ""
    wanted = []
    for scheme in unmet:
        kinds = dict.fromkeys(NAMES[one["authentication"]] for one in scheme.fulfilled_by)
        wanted.append(f"{quoted(scheme.name)} ({' or '.join(kinds)})")
    others = " and ".join(quoted(scheme.name) for scheme in schemes if scheme not in unmet)
    beside = f" in addition to {others}" if others else ""
    kind = settings["authentication"]
    present = NAMES[kind] + (f" in {settings['api_key_name']}" if kind == "api_key" else "")
    if extra := [name for key in EXTRA_KEYS if (name := settings.get(f"{key}_name"))]:
        present += f" and extra keys in {', '.join(extra)}"
    advice, places = "", [f"{scheme.key[1]} ({scheme.key[0]})" for scheme in unmet if scheme.key is not None]
    if len(places) == len(unmet):
        advice = f" (add {' and '.join(places)} to the source as an extra key, and import again)"
    return f"{' and '.join(wanted)}{beside}, but the source has {present}{advice}"
