"""Reading an OpenAPI document: its text, references and servers."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self
from urllib.parse import unquote

from connectors.formats.json import UnreadableJSON, as_object, parse_json, write_json
from connectors.formats.json_schema import JSON_TYPES, child_of, parts_of, pointer_of, steps_of, value_at
from connectors.formats.yaml import Limits, TooManyValues, UnusableText, read_values
from connectors.http_tools.request import FORM, MULTIPART, is_form, is_multipart
from connectors.network.policy import normalise_base_url

METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch"})
BODIES = ("body", "formData")
SEVERAL_BODIES = "x-several-bodies"  # Their names, in a body that was made of them
MAX_CHAIN = 20
ABOUT_PARAMETERS = frozenset(
    {"name", "in", "description", "required", "schema", "collectionFormat", "allowEmptyValue"}
)
"""Keywords of a parameter; all others are those of its schema."""
STYLES = {"pipes": "pipeDelimited", "ssv": "spaceDelimited", "tsv": "tabDelimited"}
FLOWS = {"application": "clientCredentials", "accessCode": "authorizationCode"}
LOCAL = ("localhost", "127.0.0.1", "[::1]")
Object = dict[str, Any]


def openapi_of(value: Object) -> Object:
    """References to definitions, parameters and responses keep their targets. What cannot be read stays as it
    is: its operation is refused later."""
    converter = _Converter(value)
    return value | {
        "openapi": "3.0.3",
        "servers": _servers(value),
        "components": {"securitySchemes": _mapped(value.get("securityDefinitions"), _scheme)},
        "parameters": _mapped(value.get("parameters"), _parameter),
        "responses": _mapped(value.get("responses"), lambda one: _response(one, converter.produces)),
        "paths": _mapped(value.get("paths"), converter.path_item),
    }


def _mapped(value: Any, convert: Callable[[Any], Any]) -> Any:
    return (
        _object_of([(key, convert(one)) for key, one in value.items()]) if isinstance(value, dict) else value
    )


def _servers(value: Object) -> list[Object]:
    named = (one if isinstance(one := value.get(key), str) else "" for key in ("host", "basePath"))
    host, path = (one.strip("/") for one in named)
    if not host:
        return [{"url": f"/{path}"}] if path else []
    schemes = value.get("schemes")
    names = [str(one).lower() for one in schemes] if isinstance(schemes, list) else []
    offered = [name for name in names if name in ("https", "http")]
    usual = "http" if host.startswith(LOCAL) else "https"
    scheme = usual if usual in offered or not offered else offered[0]
    return [{"url": f"{scheme}://{host}/{path}".rstrip("/")}]


def _scheme(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    if raw.get("type") == "basic":
        return {"type": "http", "scheme": "basic"}
    if raw.get("type") == "oauth2":
        flow = raw.get("flow")
        return {"type": "oauth2", "flows": {FLOWS.get(str(flow), str(flow)): raw}}
    return raw


def _parameter(raw: Any) -> Any:
    """A parameter of the body stays as it is: its operation makes a body of it."""
    if not isinstance(raw, dict) or "$ref" in raw or raw.get("in") in BODIES:
        return raw
    parameter = {key: raw[key] for key in ("name", "in", "description", "required") if key in raw}
    parameter["schema"] = _schema_of(raw)
    if raw.get("type") == "array" and raw.get("in") == "query":
        written = str(raw.get("collectionFormat", "csv"))
        parameter["explode"] = written == "multi"
        parameter["style"] = STYLES.get(written, "form")
    return parameter


def _schema_of(raw: Object) -> Object:
    schema = {key: value for key, value in raw.items() if key not in ABOUT_PARAMETERS}
    if "file" not in _types_of(raw):
        return schema
    file = {"type": "string", "format": "binary"}
    return schema | ({"items": file} if raw.get("type") == "array" else file)


def _types_of(raw: Object) -> tuple[str, str]:
    """Returns the types of a parameter, and of a list's items."""
    items = raw.get("items")
    return str(raw.get("type")), str(items.get("type")) if isinstance(items, dict) else ""


def _response(raw: Any, media_types: list[str]) -> Any:
    if not isinstance(raw, dict) or "schema" not in raw:
        return raw
    return {"content": {name: {"schema": raw["schema"]} for name in media_types}}


def _texts(value: Any, usual: list[str]) -> list[str]:
    found = [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
    return found or usual


class _Converter:
    def __init__(self, value: Object) -> None:
        self.value = value
        self.consumes = _texts(value.get("consumes"), [])
        self.produces = _texts(value.get("produces"), ["application/json"])

    def path_item(self, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        shared = raw.get("parameters")
        bodies, others = self._split(shared)

        def converted(key: str, value: Any) -> Any:
            if key.lower() in METHODS and isinstance(value, dict):
                return self._operation(value, bodies)
            return others if key == "parameters" else value

        return _object_of([(key, converted(key, value)) for key, value in raw.items()])

    def _operation(self, raw: Object, shared: list[Object]) -> Object:
        own, others = self._split(raw.get("parameters"))
        produces = _texts(raw.get("produces"), self.produces)
        changed = {
            "parameters": others,
            "responses": _mapped(raw.get("responses"), lambda one: _response(one, produces)),
        }
        # Fields of a form add to those of the path; anything else replaces them.
        is_all_form = all(one["in"] == "formData" for one in (*shared, *own))
        names = {one.get("name") for one in own}
        inherited = [one for one in shared if not own or (is_all_form and one.get("name") not in names)]
        body = self._body(inherited + own, _texts(raw.get("consumes"), self.consumes))
        changed |= {"requestBody": body} if body else {}
        pairs = [(key, changed.get(key, value)) for key, value in raw.items() if key != "requestBody"]
        return _object_of([*pairs, *((key, one) for key, one in changed.items() if key not in raw)])

    def _split(self, parameters: Any) -> tuple[list[Object], Any]:
        """Returns the parameters of the body, and the others."""
        if not isinstance(parameters, list):
            return [], parameters
        found = [(one, self._target(one)) for one in parameters]
        bodies = [target for _, target in found if target.get("in") in BODIES]
        return bodies, [_parameter(one) for one, target in found if target.get("in") not in BODIES]

    def _target(self, one: Any) -> Object:
        """Follows local references. Returns {} for what cannot be read."""
        try:
            for _ in range(MAX_CHAIN):
                if not isinstance(one, dict) or "$ref" not in one:
                    break
                one = value_at(self.value, str(one["$ref"]).removeprefix("#"))
        except (LookupError, ValueError):
            return {}
        return as_object(one)

    def _body(self, parameters: list[Object], consumes: list[str]) -> Object | None:
        bodies = [one for one in parameters if one["in"] == "body"]
        if not bodies or len(bodies) < len(parameters):
            return _form(parameters, consumes) if parameters else None
        described = bodies[0] if len(bodies) == 1 else self._together(bodies)
        # Frameworks list forms for all operations; a body is never one.
        names = [name for name in consumes if not (is_form(name) or is_multipart(name))]
        media = {"schema": described.get("schema", {})}
        content = dict.fromkeys(names or ["application/json"], media)
        about = {key: described[key] for key in ("description", SEVERAL_BODIES) if key in described}
        return about | {"required": described.get("required") is True, "content": content}

    def _together(self, bodies: list[Object]) -> Object:
        """Several bodies as one, which 2.0 does not allow: their fields, else they themselves as fields."""
        names, schemas = [str(one.get("name")) for one in bodies], [one.get("schema", {}) for one in bodies]
        needed = [name for name, one in zip(names, bodies, strict=True) if one.get("required") is True]
        schema: Object = {"allOf" if len(needed) == len(names) else "anyOf": schemas}
        if not all({"properties", "allOf"} & self._target(one).keys() for one in schemas):
            properties = dict(zip(names, schemas, strict=True))
            schema = {"type": "object", "properties": properties, "required": needed}
        return {"required": bool(needed), "schema": schema, SEVERAL_BODIES: names}


def _form(parameters: Iterable[Object], consumes: list[str]) -> Object:
    """Accepts a body beside the fields, as frameworks describe a part that is JSON."""
    fields = {str(one.get("name")): one for one in parameters}
    bodies = [name for name, one in fields.items() if one["in"] == "body"]
    has_files = bool(bodies) or any("file" in _types_of(one) for one in fields.values())
    in_parts = has_files or (any(map(is_multipart, consumes)) and not any(map(is_form, consumes)))
    required = [name for name, one in fields.items() if one.get("required") is True]
    properties = {name: _field(one) for name, one in fields.items()}
    encoding: Object = {
        name: {"explode": False}
        for name, one in fields.items()
        if one.get("type") == "array" and one.get("collectionFormat") != "multi"
    }
    encoding |= {name: {"contentType": "application/json"} for name in bodies}
    schema = {"type": "object", "properties": properties} | ({"required": required} if required else {})
    media = {"schema": schema} | ({"encoding": encoding} if encoding else {})
    about: Object = {SEVERAL_BODIES: [*fields]} if bodies else {}
    return about | {"required": bool(required), "content": {MULTIPART if in_parts else FORM: media}}


def _field(raw: Object) -> Object:
    if raw["in"] == "body":
        return as_object(raw.get("schema"))
    said = {"description": raw["description"]} if "description" in raw else {}
    return _schema_of(raw) | said


SHOWN = 200
MAX_DESCRIPTION = 2_000  # Each agent that sees the tool pays for it
MAX_ARGUMENT_DESCRIPTION = 600
MAX_TITLE_LENGTH = 255
LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*(?:\s+\"[^\"]*\")?\)")
COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
TAG = re.compile(r"</?[A-Za-z][^<>]{0,500}>")
MAX_BYTES = 40_000_000
MAX_YAML_BYTES = 8_000_000  # YAML takes about ten times as long as JSON
MAX_DEPTH = 100
MAX_VALUES = 2_000_000  # With YAML aliases expanded
YAML_LIMITS = Limits(bytes=MAX_YAML_BYTES, depth=MAX_DEPTH, parts=MAX_VALUES, integer=10**40)
TOO_MANY = f"The document has more than {MAX_VALUES:,} values, the maximum."
VERSION = re.compile(r"3(?:\.(\d{1,3}))?(?:\.|\Z)")
SWAGGER_2 = re.compile(r"2(?:\.0(?:\.\w+)?)?")
MAX_SUBTYPES = 200
MAX_LOOKED_AT = 50  # Schemas inspected for one value
VARIABLE = re.compile(r"\{([^{}]*)\}")
SERVERS = {"servers": [{"url": "https://..."}], "host": "api.example.com", "basePath": "/v1"}  # Examples
MAX_LISTED = 3
Located = tuple[Any, str]  # A part of the document and its pointer
SPECIFY = (
    "Specify the base URL, the common prefix of all URLs of the API: --base-url in the command, base_url in "
    "REST, or the field of that name in the admin."
)


class UnusableDocument(ValueError):
    """The message says why the document cannot be imported, and what to do."""


class NoTool(Exception):
    """The message is a sentence: why an operation cannot be a tool."""

    def __init__(self, reason: str, pointer: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.pointer = pointer  # Into the document; empty: the operation as a whole


class MissingTarget(NoTool):
    """A reference within the document leads nowhere."""

    def __init__(self, reason: str, pointer: str, *, target: str) -> None:
        super().__init__(reason, pointer)
        self.target = target  # As a JSON Pointer


def note_on_missing(target: str) -> str:
    return f"{quoted(f'#{target}')} does not exist; any value is accepted in its place."


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedOperation:
    method: str  # In capitals
    path: str
    operation_id: str
    pointer: str  # JSON Pointer to the unsupported part
    reason: str


def quoted(text: object) -> str:
    """A name from the document, shortened and printable."""
    shown = "".join(char if char.isprintable() else " " for char in str(text))
    return f'"{shown[:SHOWN]}..."' if len(shown) > SHOWN else f'"{shown}"'


def plain_text(value: Any, longest: int) -> str:
    """Leaves out links, tags and comments, and cuts at a word; other Markdown stays."""
    if not isinstance(value, str):
        return ""
    # The rest would be cut off anyway.
    text = value[: 20 * longest]
    text = TAG.sub(" ", LINK.sub(r"\1", COMMENT.sub(" ", text)))
    text = re.sub(r"\n\s*\n\s*", "\n\n", re.sub(r"[ \t]+", " ", text)).strip()
    if len(text) <= longest:
        return text
    return text[: longest - 3].rpartition(" ")[0].rstrip() + "..."


def description_of(summary: Any, description: Any, *, otherwise: str) -> str:
    """Joins both, unless one begins with the other."""
    short, long = plain_text(summary, MAX_TITLE_LENGTH), plain_text(description, MAX_DESCRIPTION)
    if short and not long.startswith(short.rstrip(".")):
        # A summary is a heading: the description goes on below it.
        long = f"{short}\n\n{long}".strip()
    return plain_text(long, MAX_DESCRIPTION) or otherwise


class Ambiguous(dict[str, Any]):
    """An object with a duplicate key, so its value is ambiguous."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs
        self._times = Counter(key for key, _ in pairs)

    def repeats(self, key: str) -> bool:
        return self._times[key] > 1

    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Every pair of the text."""
        return self._pairs


def checked_object(value: Any, pointer: str, required: str) -> dict[str, Any]:
    """Raises NoTool for anything but an object without duplicate keys; `required` names it in the error."""
    if not isinstance(value, dict):
        raise NoTool(f"{required} is required here.", pointer)
    if isinstance(value, Ambiguous):
        repeated = next(filter(value.repeats, value))
        raise NoTool(f"The key {quoted(repeated)} occurs twice in one object.", pointer)
    return value


def read_text(content: bytes) -> Any:
    """JSON values. Raises UnusableDocument."""
    if len(content) > MAX_BYTES:
        raise UnusableDocument(f"The document is larger than {MAX_BYTES:,} bytes, the maximum.")
    if content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        # An upper bound: every value but the first follows one of these.
        if len(content) - len(content.translate(None, b",[{")) > MAX_VALUES:
            raise UnusableDocument(TOO_MANY)
        try:
            return parse_json(content, max_depth=MAX_DEPTH, object_of=_object_of)
        except UnreadableJSON as error:
            raise UnusableDocument(str(error)) from None
    if len(content) > MAX_YAML_BYTES:
        raise UnusableDocument(
            f"The document is larger than {MAX_YAML_BYTES:,} bytes, the maximum for YAML; convert it to JSON "
            f"(maximum: {MAX_BYTES:,} bytes)."
        )
    try:
        return read_values(content, limits=YAML_LIMITS, object_of=_object_of)
    except TooManyValues:
        raise UnusableDocument(TOO_MANY) from None
    except UnusableText as error:
        raise UnusableDocument(f"The document cannot be read as YAML: {error}") from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else Ambiguous(pairs)


class Document:
    """Parts are addressed by JSON Pointers from the root."""

    def __init__(self, value: dict[str, Any], minor: int) -> None:
        self.value = value
        self.minor = minor  # 1 for OpenAPI 3.1
        self._followed: dict[str, tuple[Any, str]] = {}  # By reference
        self._subtypes: dict[str, dict[str, None]] = {}  # By the base's pointer

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Raises UnusableDocument."""
        value = read_text(content)
        if not isinstance(value, dict):
            raise UnusableDocument(
                "The document is not a JSON object or YAML mapping, so it is not an OpenAPI document."
            )
        if SWAGGER_2.fullmatch(str(value.get("swagger", ""))) and "openapi" not in value:
            value = openapi_of(value)
        elif "swagger" in value and "openapi" not in value:
            raise UnusableDocument(
                f"This is a Swagger {value['swagger']!s:.10} document. Convert it to Swagger 2.0 or OpenAPI "
                "3 first."
            )
        found = VERSION.match(str(value.get("openapi", "")))
        if found is None:
            raise UnusableDocument(
                "The document is neither OpenAPI 3 nor Swagger 2.0: it must have the key openapi with a "
                'version such as 3.1.0, or the key swagger with "2.0".'
            )
        return cls(value, minor=int(found[1] or 0))

    def object_at(self, value: Any, pointer: str) -> tuple[dict[str, Any], str]:
        """The object behind references, and its pointer. Raises NoTool."""
        for _ in range(MAX_CHAIN):
            if "$ref" not in checked_object(value, pointer, "An object"):
                return value, pointer
            value, pointer = self.follow(value["$ref"], pointer)
        raise NoTool("The chain of references is too long.", pointer)

    def described_at(self, value: Any, pointer: str) -> tuple[dict[str, Any], str]:
        """Works like `object_at`; a description beside the reference replaces that of its target."""
        found, at = self.object_at(value, pointer)
        if "$ref" in value and "description" in value:
            found = found | {"description": value["description"]}
        return found, at

    def path_item_at(self, value: Any, pointer: str) -> list[Located]:
        """The path item, and behind references those that it extends. Raises NoTool."""
        items: list[Located] = []
        while len(items) < MAX_CHAIN:
            # If methods are duplicated, the others are still usable.
            if not isinstance(value, Ambiguous) or value.repeats("$ref"):
                checked_object(value, pointer, "An object")
            items.append((value, pointer))
            if "$ref" not in value:
                return items
            value, pointer = self.follow(value["$ref"], pointer)
        raise NoTool("The chain of references is too long.", pointer)

    def object_or_nothing(self, value: Any, pointer: str, notes: list[str]) -> Any:
        """The value; {} with a note if it is a reference to nothing. Raises NoTool."""
        if isinstance(value, dict) and "$ref" in value:
            try:
                self.object_at(value, pointer)
            except MissingTarget as missing:
                notes.append(note_on_missing(missing.target))
                return {}
        return value

    def follow(self, reference: Any, pointer: str) -> tuple[Any, str]:
        """Takes one step from the reference at `pointer`. Raises NoTool."""
        where = f"{pointer}/$ref"
        if not isinstance(reference, str):
            raise NoTool("A $ref must be a string.", where)
        if (known := self._followed.get(reference)) is not None:
            return known
        uri, _, fragment = reference.partition("#")
        try:
            if uri:
                raise ValueError("References are not fetched.")
            steps = steps_of(unquote(fragment))
        except ValueError:
            fault = "outside the document or by an $id" if uri else "by an $anchor"
            advice = "bundle the document into one file with JSON Pointers such as #/components/schemas/Page."
            raise NoTool(
                f"It refers to {quoted(reference)} {fault}, which is not followed; {advice}", where
            ) from None
        try:
            found = self._followed[reference] = self._value_at(steps), pointer_of(steps)
        except LookupError:
            reason = f"It refers to {quoted(reference)}, which does not exist."
            raise MissingTarget(reason, where, target=pointer_of(steps)) from None
        return found

    def for_the_same_value(self, raw: Any, words: Iterable[str]) -> Iterator[dict[str, Any]]:
        """The schema with those that it refers to or has below these words, up to a limit."""
        waiting, seen = [raw], 0
        while waiting and seen < MAX_LOOKED_AT:
            one, seen = waiting.pop(), seen + 1
            if not isinstance(one, dict):
                continue
            yield one
            for word in words:
                inner = one.get(word, [])
                waiting += inner if isinstance(inner, list) else [inner]
            if "$ref" in one:
                # A broken reference is reported where the schema itself is converted.
                with suppress(NoTool):
                    waiting.append(self.follow(one["$ref"], "")[0])

    def subtypes_of(self, base: str) -> dict[str, None]:
        """Pointers of the definitions that extend the schema at `base` by `allOf`, also indirectly, and of
        those that its discriminator names. None without a discriminator, of its own or inherited."""
        if base not in self._subtypes:
            found: dict[str, None] = {}
            with suppress(LookupError, ValueError, NoTool):
                raw = as_object(self._value_at(steps_of(base)))
                for target in mapping_of(raw).values():
                    found[self.follow(target, base)[1]] = None
                extended = self.for_the_same_value(raw, ("allOf",))
                waiting = [base, *found] if any("discriminator" in each for each in extended) else []
                for one in waiting:
                    new = [each for each in self.extensions.get(one, ()) if each not in found]
                    waiting += (new := new[: max(0, MAX_SUBTYPES - len(found))])
                    found |= dict.fromkeys(new)
            self._subtypes[base] = {one: None for one in found if one != base}
        return self._subtypes[base]

    def is_own_base(self, base: str, pointer: str) -> bool:
        """Returns True if the reference at the pointer is that of a subtype: it means the base alone."""
        return pointer.rpartition("/allOf/")[0] in self.subtypes_of(base)

    @cached_property
    def extensions(self) -> dict[str, list[str]]:
        """Pointers of the definitions whose `allOf` refers to a schema, by its pointer."""
        found: dict[str, list[str]] = {}
        components = as_object(self.value.get("components")).get("schemas")
        places = {"/components/schemas": components, "/definitions": self.value.get("definitions")}
        for place, raws in places.items():
            for name, raw in as_object(raws).items():
                at = f"{place}{pointer_of([name])}"
                for part, where in parts_of(as_object(raw), "allOf", at):
                    with suppress(NoTool):
                        target = self.follow(as_object(part).get("$ref"), where)[1]
                        found.setdefault(target, []).append(at)
        return found

    def _value_at(self, steps: Iterable[str]) -> Any:
        value: Any = self.value
        for step in steps:
            if isinstance(value, Ambiguous) and value.repeats(step):
                raise NoTool(f"The key {quoted(step)} occurs twice in one object.")
            value = child_of(value, step)
        return value


def mapping_of(schema: dict[str, Any]) -> dict[str, str]:
    """References by the discriminator's values, of which some documents only give the name."""
    mapping = as_object(as_object(schema.get("discriminator")).get("mapping")).items()
    return {key: str(one) if "/" in str(one) else f"#/components/schemas/{one}" for key, one in mapping}


def base_url_of(document: Document, given: str) -> str:
    """The given base URL, else the document's first server. Raises UnusableDocument."""
    if given:
        return _normalised(given)
    _check_types_of_servers(document.value)
    servers = list(_urls(document.value.get("servers")))
    url = servers[0] if servers else "/"
    if url.startswith(("http://", "https://")):
        return _normalised(url)
    fault = "does not have a server" if url == "/" else f"only has the server {quoted(url)}"
    if not servers and document.value.get("servers"):
        fault = "has servers, but none of them is an object whose url is a string"
    raise UnusableDocument(f"The document {fault}. {SPECIFY}")


def _check_types_of_servers(value: dict[str, Any]) -> None:
    """Raises UnusableDocument for an address that is there and has the wrong type."""
    for key, example in SERVERS.items():
        given, kind = value.get(key), type(example)
        if ("swagger" in value) == (kind is str) and not isinstance(given, kind | None):
            shape = f"a {'string' if kind is str else 'list'} such as {write_json(example)}"
            raise UnusableDocument(
                f"The document's {key} is of the type {JSON_TYPES.get(type(given), 'object')}, but must be "
                f"{shape}. Correct it, or: {SPECIFY}"
            )


def note_on_servers(document: Document, base_url: str) -> str:
    urls = [url.rstrip("/") for url in _urls(document.value.get("servers"))]
    others = [url for url in urls if url and url != base_url]
    if not others or (base_url in urls and len(urls) == 1):
        return ""
    if others[0].startswith("/") and not base_url.endswith(others[0]):
        return f"The document's server is {quoted(others[0])}, but the base URL does not end with it."
    shown = ", ".join(others[:5])
    return f"The document also names {shown}; the base URL {base_url} is used." if base_url in urls else ""


def note_on_nothing(document: Document) -> str:
    webhooks = as_object(document.value.get("webhooks", document.value.get("x-webhooks")))
    only = f"only webhooks ({len(webhooks)}), which are not operations of the API"
    return f"The document has {only if webhooks else 'no operations'}."


def check_server(document: Document, *levels: tuple[dict[str, Any], str], base_url: str) -> None:
    """Raises NoTool for an operation with another server. `levels`: the operation, then its path item, each
    with its pointer."""
    for raw, pointer in levels:
        if "servers" not in raw:
            continue
        own, usual = list(_urls(raw["servers"])), list(_urls(document.value.get("servers")))
        # A base URL of the user's replaces the document's own server.
        if not own or base_url in {url.rstrip("/") for url in own} or own[0] in usual[:1]:
            return
        reason = f"Its server is {quoted(own[0])}, not {base_url}; a source has only one base URL."
        raise NoTool(reason, f"{pointer}/servers")


def _urls(servers: Any) -> Iterator[str]:
    """Yields URLs with the variables' defaults."""
    for server in servers[:50] if isinstance(servers, list) else ():
        if isinstance(server, dict) and isinstance(url := server.get("url"), str):
            url = url.strip()[:2_000]
            for name in VARIABLE.findall(url):
                default = as_object(as_object(server.get("variables")).get(name)).get("default")
                if isinstance(default, str | int):
                    url = url.replace(f"{{{name}}}", str(default))
            yield re.sub(r"^\w+(?=://)", lambda scheme: scheme[0].lower(), url)


def _normalised(url: str) -> str:
    try:
        if "{" in url:
            raise ValueError("Specify the base URL with its variables filled in.")
        return normalise_base_url(url)
    except ValueError as error:
        # Not quoted: it may hold a password.
        raise UnusableDocument(f"The base URL cannot be used. {error}") from None
