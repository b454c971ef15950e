"""Building a tool's request from its arguments, and comparing it with another request."""

import base64
import json
import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_to_bytes, urlencode

import httpx2
from pydantic import ValidationError

from connectors.errors import Rejected
from connectors.formats.json import UnreadableJSON, parse_json, write_arguments
from connectors.formats.json_schema import JSON_TYPES, pointer_of, steps_of
from connectors.http_tools.tool import (
    ArgumentPlace,
    BodyFormat,
    HttpOperation,
    HTTPRequestSpec,
    Scalar,
    fill_template,
)
from connectors.network.headers import media_types_in, objection_to_cookie, objection_to_value
from connectors.network.policy import port_of
from connectors.network.redaction import printable, shorten

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
MEDIA_RANGE = re.compile(r"[a-z0-9!#$&^_.+-]+/(?:\*|[a-z0-9!#$&^_.+-]+)|\*/\*")
SENT_AS_JSON = frozenset({"application/json", "*/*", "application/*", "*"})
"""Media types that can be sent as application/json."""
JSON_LINES = re.compile(r".*[/.](?:x-)?(?:ndjson|json-?lines?|jsonl)(?:\+json)?")
YAML = re.compile(r".*[/.+-]ya?ml")
JSON_PATCH, MERGE_PATCH = "json-patch+json", "merge-patch+json"
PATCHES = {
    f"strategic-{MERGE_PATCH}": "merges lists by their items' keys, with directives such as $patch",
    MERGE_PATCH: "null deletes a member, a list replaces the whole list",
    "apply-patch+yaml": "server-side apply of all that the field manager wants",
    JSON_PATCH: 'a list of operations, such as {"op": "remove", "path": "/a"}',
}
"""What a body means, by the end of its media type."""


def is_json(media_type: str) -> bool:
    plain = plain_name(media_type)
    return plain in SENT_AS_JSON or plain.endswith(("+json", "/json"))


def is_form(media_type: str) -> bool:
    return plain_name(media_type) == FORM


def is_multipart(media_type: str) -> bool:
    return plain_name(media_type) == MULTIPART


def is_json_lines(media_type: str) -> bool:
    return bool(JSON_LINES.fullmatch(plain_name(media_type)))


def is_yaml(media_type: str) -> bool:
    return bool(YAML.fullmatch(plain_name(media_type)))


def patch_of(media_type: str) -> str:
    """The key of PATCHES; empty for other types."""
    return next((kind for kind in PATCHES if plain_name(media_type).endswith(kind)), "")


def can_hold(media_type: str, types: Set[str]) -> bool:
    """Returns True if a value of one of these JSON types, a "file" or an object with "files" can be such a
    body. No types: any."""
    kind, plain = patch_of(media_type), plain_name(media_type)
    held = {"string", "number", "integer", "boolean", "array", "object"}
    if is_multipart(plain):
        held = {"object", "files"}
    elif kind or is_form(plain):
        held = {"array"} if kind == JSON_PATCH else {"object"}
    elif not is_json(plain) or "*" in plain:
        held = {"string", "file"} if plain.startswith("text/") and not is_yaml(plain) else held | {"file"}
    return not types or not types.isdisjoint(held)


def is_sent_raw(media_type: str) -> bool:
    """Accepts also a range such as `image/*`; not a multipart type, whose boundary only its writer knows."""
    plain = plain_name(media_type)
    return bool(MEDIA_RANGE.fullmatch(plain)) and not plain.startswith("multipart/")


def is_raw(media_type: str, types: Set[str]) -> bool:
    """Returns True if values of these types are given as the text or file that is the body."""
    if is_json(media_type):
        return "*" in media_type and "file" in types
    is_text = not types or not types.isdisjoint({"string", "file"})
    is_written = (is_yaml(media_type) or is_json_lines(media_type)) and not is_text
    return not (is_form(media_type) or is_multipart(media_type) or is_written)


def choose_media_type(offered: Mapping[str, Set[str]]) -> str:
    """Chooses of those that can hold the types of their values: the one that says most precisely what is
    meant, else JSON, else a form, else a multipart one, else the first. Empty if none can be sent."""
    names = [name for name, types in offered.items() if can_hold(name, types)] or list(offered)
    for fits in (
        lambda name: offered[name] == {"string"} and name.startswith("text/") and not is_json(name),
        lambda name: offered[name] == {"array"} and is_json_lines(name),
        lambda name: patch_of(name) == MERGE_PATCH,
        lambda name: plain_name(name) == "application/json",
        lambda name: is_json(name) and patch_of(name) != JSON_PATCH,
        is_json,
        is_form,
        is_multipart,
        is_sent_raw,
    ):
        if chosen := next((name for name in names if fits(name)), None):
            return chosen
    return ""


def plain_name(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


MAX_FILE_BYTES = 20_000_000
DATA_URI = re.compile(r"data:(?P<type>[^;,]*)(?P<parameters>(?:;[^;,]*)*),(?P<data>.*)", re.DOTALL)
MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(?:; ?[A-Za-z0-9-]+=[A-Za-z0-9_.-]+)*")
JSON = "application/json"
COOKIE = "Cookie"
ACCEPT = "application/json, text/*;q=0.9, */*;q=0.5"
MEDIA_TYPES: dict[BodyFormat, str] = {"json": JSON, "form": FORM, "multipart": MULTIPART}
SEPARATORS = {",": "a comma", "|": "a vertical bar", " ": "a space"}
Pair = tuple[str, str]
MAX_PARTS = 5
Part = tuple[str, str]  # A place in a request and the name there; in a JSON body a pointer


class NoText(ValueError):
    """Gives the reason why a value cannot be text: `is an object`."""


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Raises Rejected in place of NoText."""
    try:
        yield
    except NoText as error:
        raise Rejected(f"{what} {error}. Nothing was sent.") from None


def text_of(value: Scalar) -> str:
    """Writes it as JSON does (`true`, `1.5`); a text unchanged."""
    return value if isinstance(value, str) else json.dumps(value)


def scalar_of(value: Any) -> Scalar:
    """Raises NoText for any other value."""
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return value
    if value is None:
        raise NoText("is null, which only a JSON body can express; leave it out")
    raise NoText("is an object" if isinstance(value, dict) else "is not a string, number or boolean")


def scalars_of(value: Any) -> Scalar | list[Scalar]:
    """Works like `scalar_of`, for a scalar or a list of them."""
    return [scalar_of(item) for item in value] if isinstance(value, list) else scalar_of(value)


def joined(items: Iterable[Scalar], separator: str = ",") -> str:
    """Raises NoText if the separators would be ambiguous."""
    texts = [text_of(item) for item in items]
    if any(separator in text for text in texts) or texts == [""]:
        name = SEPARATORS[separator]
        raise NoText(f"has an item that is empty or contains {name}, which separates the items here")
    return separator.join(texts)


def build_request(operation: HttpOperation, *, base_url: str, arguments: dict[str, Any]) -> HTTPRequestSpec:
    """The request without credentials. Raises Rejected for unknown arguments. A null that its place cannot
    express counts as an omitted argument, for which models write it."""
    if strangers := sorted(arguments.keys() - operation.arguments.keys()):
        raise Rejected(f"The tool does not accept {', '.join(strangers)[:300]}. Nothing was sent.")
    if None in arguments.values():
        arguments = {
            name: value
            for name, value in arguments.items()
            if value is not None
            or name in operation.required  # Refused later
            or (place := operation.arguments[name]).as_json
            or (place.place == "body" and operation.body_format == "json")
        }
    try:
        return HTTPRequestSpec(
            method=operation.method,
            url=base_url.rstrip("/") + _path(operation, arguments),
            headers=_headers(operation, arguments, body := _body(operation, arguments)),
            query_params=_query(operation, arguments),
            **body,
        )
    except ValidationError:
        raise Rejected("The arguments make the URL too long. Nothing was sent.") from None


def _path(operation: HttpOperation, arguments: dict[str, Any]) -> str:
    if not operation.by_place["path"]:
        return operation.path
    given = operation.path_defaults | arguments
    texts: dict[str, str] = {}
    slashes: set[str] = set()
    for argument, place in operation.by_place["path"]:
        if argument not in given:
            raise Rejected(f"{argument} is required, because it is part of the URL. Nothing was sent.")
        texts[place.name] = _text(argument, place, given[argument])
        slashes |= {place.name} if place.slashes else set()
    return fill_template(operation.path, texts, with_slashes=frozenset(slashes))


def _headers(operation: HttpOperation, arguments: dict[str, Any], body: dict[str, Any]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in operation.constant_values["header"].items():
        headers[name] = text_of(value)
    for argument, place in operation.by_place["header"]:
        if place.media_types:
            types = {JSON_TYPES[type(body.get("body"))]}
            fitting = [one for one in place.media_types if can_hold(one, types)] or place.media_types
            if (chosen := arguments.get(argument, fitting[0])) not in fitting:
                raise Rejected(
                    f"For such a body, {argument} must be {' or '.join(fitting)}. Nothing was sent."
                )
            headers[place.name] = str(chosen)
        elif argument in arguments:
            headers[place.name] = _text(argument, place, arguments[argument])
    if cookies := [
        f"{place.name}={_text(argument, place, arguments[argument])}"
        for argument, place in operation.by_place["cookie"]
        if argument in arguments
    ]:
        headers[COOKIE] = "; ".join(cookies)
    return headers


def _text(argument: str, place: ArgumentPlace, value: Any) -> str:
    """Writes a value for the path, a header or a cookie."""
    with _naming(f"The value of {argument}"):
        if place.as_json:
            # Headers are limited to ASCII, and elsewhere escapes mean the same.
            text = write_arguments(value, ascii_only=True)
        elif isinstance(value, list) and place.place != "cookie":
            text = joined([scalar_of(item) for item in value])
        else:
            text = text_of(scalar_of(value))
        objection_to = {"header": objection_to_value, "cookie": objection_to_cookie}.get(place.place)
        if objection_to and (why := objection_to(text)):
            raise NoText(why)
        return text


def cookie_names(spec: HTTPRequestSpec) -> set[str]:
    cookies = spec.headers.get(COOKIE, "")
    return {cookie.partition("=")[0] for cookie in cookies.split("; ") if cookie}


def _query(operation: HttpOperation, arguments: dict[str, Any]) -> dict[str, Scalar | list[Scalar]]:
    query: dict[str, Scalar | list[Scalar]] = {}
    for name, value in operation.constant_values["query"].items():
        query[name] = scalars_of(value)
    for argument, place in operation.by_place["query"]:
        if argument in arguments:
            value = arguments[argument]
            if place.brackets:
                found = _with_brackets(argument, place, value)
            elif place.spread:
                found = _entries(operation, argument, value)
            else:
                found = {place.name: _query_value(argument, place, value)}
            # A field must not replace a constant, such as filter[tenant], or another argument.
            if taken := found.keys() & query.keys():
                raise Rejected(f"{argument} sets {min(taken)}, which is set already. Nothing was sent.")
            query |= found
    return query


def _entries(operation: HttpOperation, argument: str, value: Any) -> dict[str, Scalar | list[Scalar]]:
    if not isinstance(value, dict):
        raise Rejected(f"The value of {argument} must be an object. Nothing was sent.")
    # Also of arguments that are not given: their schemas do not hold here.
    others = {place.name: name for name, place in operation.by_place["query"] if name != argument}
    for name in value:
        if (other := others.get(name) or others.get(name.partition("[")[0])) is not None:
            raise Rejected(f"{argument} sets {name}; use the argument {other} for that. Nothing was sent.")
    with _naming(f"The value of an entry of {argument}"):
        return {name: scalars_of(one) for name, one in value.items()}


def _with_brackets(argument: str, place: ArgumentPlace, value: Any) -> dict[str, Scalar | list[Scalar]]:
    found: dict[str, list[Scalar]] = {}
    with _naming(f"The value of {argument}"):
        for name, text in _form_pairs(place.name, value):
            found.setdefault(name, []).append(text)
    return {**found}


def _query_value(argument: str, place: ArgumentPlace, value: Any) -> Scalar | list[Scalar]:
    if place.as_json:
        return write_arguments(value)
    with _naming(f"The value of {argument}"):
        scalars = scalars_of(value)
        # An empty list is never sent as a parameter.
        if isinstance(scalars, list) and scalars and not place.explode:
            return joined(scalars, place.separator)
        return scalars


def _body(operation: HttpOperation, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns a field of HTTPRequestSpec; empty: no body is sent, which is not the same as null."""
    placed = operation.by_place["body"]
    fields = operation.constant_values["body"].copy()
    for argument, place in placed:
        if argument in arguments:
            value = arguments[argument]
            # A JSON body holds values unchanged; a text that is JSON is meant to be the JSON of a field.
            is_text = place.as_json and isinstance(value, str) and _is_nested_json(value)
            as_text = operation.body_format != "json" and (place.as_json or not place.explode) and not is_text
            fields[place.name] = _query_value(argument, place, value) if as_text else value
    if "" in fields:
        return {"body": fields[""]}
    if not fields and not any(place.name for _, place in placed):
        return {}
    # `{"/payment/amount": 5}` as `{"payment": {"amount": 5}}`.
    body: dict[str, Any] = {}
    for pointer, value in fields.items():
        *outer, last = steps_of(pointer)
        inner = body
        for step in outer:
            inner = inner.setdefault(step, {})
        inner[last] = value
    return {"body": body}


def _is_nested_json(text: str) -> bool:
    try:
        return isinstance(parse_json(text.encode("utf-8", "replace")), dict | list)
    except UnreadableJSON:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    content: bytes
    media_type: str
    name: str


def write_multipart(operation: HttpOperation, body: Any) -> tuple[bytes, str]:
    """A multipart body (RFC 7578) and its media type. Raises Rejected for what it cannot express."""
    if not isinstance(body, dict):
        raise Rejected("The body is a form, so it must be an object. Nothing was sent.")
    places = {
        steps[0]: place for _, place in operation.by_place["body"] if len(steps := steps_of(place.name)) == 1
    }
    whole = next((place for _, place in operation.by_place["body"] if not place.name), None)
    parts: list[Any] = []
    with _naming("A field of the form"):
        for name, value in body.items():
            place = places.get(name, whole) or ArgumentPlace(place="body")
            for item in value if isinstance(value, list) and not place.as_json else [value]:
                media_type, filename = place.media_type or None, None
                if place.file:
                    if not isinstance(item, str):
                        raise NoText("is a file, so it must be text or a data: URI")
                    file = read_file(item, field=name, media_type=place.media_type)
                    part, media_type, filename = file.content, file.media_type, file.name
                elif place.as_json or isinstance(item, dict | list):
                    text = str(item) if place.as_json else write_arguments(item)
                    part, media_type = text.encode("utf-8", "replace"), media_type or JSON
                else:
                    part = text_of(scalar_of(item)).encode("utf-8", "replace")
                parts.append((name, (filename, part, media_type)))
    if not parts:
        return b"--empty--\r\n", f"{MULTIPART}; boundary=empty"
    request = httpx2.Request("POST", "https://localhost", files=parts)
    return request.read(), request.headers["content-type"]


def read_file(text: str, *, field: str, media_type: str = "") -> File:
    """The content of a `data:` URI or text. Raises Rejected for an unreadable URI.
    `data:image/png;name=cat.png;base64,...`: some APIs need the name."""
    if not text.startswith("data:"):
        return _named(text.encode("utf-8", "replace"), media_type or "text/plain; charset=utf-8", "", field)
    found = DATA_URI.fullmatch(text)
    if found is None:
        raise Rejected(f"{field} is not a valid data: URI: the data must follow a comma. Nothing was sent.")
    *parameters, last = found["parameters"].split(";")
    is_base64 = last.strip().lower() == "base64"
    named = [one.partition("=") for one in (parameters if is_base64 else [*parameters, last])]
    given = {name.strip().lower(): unquote(value) for name, _, value in named}
    content = unquote_to_bytes(found["data"].encode("utf-8", "replace"))
    if is_base64:
        try:
            content = base64.b64decode(b"".join(content.split()), validate=True)
        except ValueError:
            raise Rejected(f"The base64 of {field} is not valid. Nothing was sent.") from None
    said = found["type"].strip()
    charset = f"; charset={given['charset']}" if said and given.get("charset") else ""
    name = given.get("name") or given.get("filename") or ""
    return _named(content, f"{said}{charset}" or media_type or "application/octet-stream", name, field)


def _named(content: bytes, media_type: str, name: str, field: str) -> File:
    if not MEDIA_TYPE.fullmatch(media_type):
        raise Rejected(f"The media type of {field} is not valid. Nothing was sent.")
    # Only the last part: directories are those of the client's machine.
    plain = re.split(r"[/\\]", name)[-1][:200].strip()
    if not plain.strip("."):
        plain = field + (mimetypes.guess_extension(media_type.partition(";")[0]) or ".bin")
    return File(content=content, media_type=media_type, name=plain)


def headers_of(
    operation: HttpOperation, spec: HTTPRequestSpec, *, key: str, content_type: str
) -> dict[str, str]:
    """All headers but credentials, by lower-case name. `content_type`: empty without a body."""
    usual = {"accept": ACCEPT, "content-type": content_type, operation.idempotency_header.lower(): key}
    usual = {name: value for name, value in usual.items() if name and value}
    return usual | {name.lower(): value for name, value in spec.headers.items()}


def query_of(spec: HTTPRequestSpec) -> list[Pair]:
    return [
        (name, text_of(value))
        for name, said in spec.query_params.items()
        for value in (said if isinstance(said, list) else [said])
    ]


def content_of(operation: HttpOperation, spec: HTTPRequestSpec) -> tuple[bytes | None, str]:
    """The body's bytes and media type; None and empty without a body. Raises Rejected."""
    if "body" not in spec.model_fields_set:
        return None, ""
    media_type = MEDIA_TYPES.get(operation.body_format, "")
    match operation.body_format:
        case "json":
            is_lines = any(place.lines for _, place in operation.by_place["body"])
            items = spec.body if is_lines and isinstance(spec.body, list) else [spec.body]
            end = "\n" if is_lines else ""
            return "".join([f"{write_arguments(item)}{end}" for item in items]).encode(), media_type
        case "form":
            return urlencode(form_pairs(spec.body)).encode("ascii"), media_type
        case "multipart":
            content, media_type = write_multipart(operation, spec.body)
        case _:
            argument, place = operation.by_place["body"][0]
            if not isinstance(spec.body, str):
                raise Rejected(f"The value of {argument} must be text or a data: URI. Nothing was sent.")
            file = read_file(spec.body, field=argument, media_type=place.media_type)
            content, media_type = file.content, file.media_type
    if len(content) > MAX_FILE_BYTES:
        raise Rejected(f"The files are larger than {MAX_FILE_BYTES:,} bytes in total. Nothing was sent.")
    return content, media_type


def form_pairs(body: Any) -> list[Pair]:
    """`{"a": {"b": 1}, "c": [2, 3]}` as a[b]=1, c=2, c=3. Raises Rejected for what a form cannot express."""
    if not isinstance(body, dict):
        raise Rejected("The body is a form, so it must be an object. Nothing was sent.")
    with _naming("A field of the form"):
        return [pair for name, value in body.items() for pair in _form_pairs(name, value)]


def _form_pairs(name: str, value: Any) -> Iterator[Pair]:
    match value:
        case dict():
            for field, inner in value.items():
                yield from _form_pairs(f"{name}[{field}]", inner)
        case list() if any(isinstance(item, dict | list) for item in value):
            # Only numbers show which fields belong to one item.
            for position, item in enumerate(value):
                yield from _form_pairs(f"{name}[{position}]", item)
        case list():
            yield from ((name, text_of(scalar_of(item))) for item in value)
        case _:
            yield name, text_of(scalar_of(value))


def difference_between(
    written: HTTPRequestSpec, built: HTTPRequestSpec, *, usual: HTTPRequestSpec, operation: HttpOperation
) -> str:
    """The first difference between a request that a model wrote and the one built from the arguments, as a
    sentence without values; empty if they match.

    Parts that the built request shares with the `usual` one, such as constants, may be missing. The written
    one is never sent, so its notation may differ: addresses are decoded once, numbers may be strings where
    only strings can be sent, and a query may be part of the URL.
    """
    try:
        said = _parts_of(written, built, operation)
        meant, optional = _parts_of(built, built, operation), _parts_of(usual, built, operation)
    except (ValueError, Rejected) as error:
        return str(error)
    if strange := [part for part in said if said[part] != meant.get(part)]:
        return f"{_list_parts(strange)} does not match the arguments."
    if missing := [part for part in meant if part not in said and meant[part] != optional.get(part)]:
        return f"{_list_parts(missing)} is missing from the request."
    return ""


def _parts_of(spec: HTTPRequestSpec, built: HTTPRequestSpec, operation: HttpOperation) -> dict[Part, str]:
    """The request in a normal form. Raises ValueError or Rejected for an ambiguous one."""
    try:
        url = httpx2.URL(spec.url)
    except httpx2.InvalidURL:
        raise ValueError("the request has no valid URL.") from None
    # httpx2 also accepts `[::1]8080`, `[::1] 8080` and `: 8080`, which other readers take for another host.
    authority = re.split("[/?#]", spec.url.partition("//")[2], maxsplit=1)[0]
    if not re.fullmatch(r"(?:\[[^\[\]]*\]|[^:\[\]]*)(?::[0-9]*)?", authority.rpartition("@")[2]):
        raise ValueError("the request has no valid URL.")
    # Decoded once; user name and fragment count, as no tool's address has them.
    path = unquote(url.raw_path.decode("ascii").partition("?")[0], errors="strict")
    address = (url.scheme, url.userinfo.decode(), url.host, str(port_of(url)), path, url.fragment)
    found = [(("method", ""), spec.method), (("address", ""), " ".join(address))]
    in_url = parse_qsl(url.query.decode("ascii"), keep_blank_values=True)
    for pairs in (in_url, query_of(spec)):
        found += [(("query", name), text) for name, text in _query_parts(pairs, operation)]
    found += _header_parts(spec, built, operation)
    found += [(("body", name), text) for name, text in _body_parts(spec.body, built.body, operation)]
    parts: dict[Part, str] = {}
    for part, text in found:
        if parts.setdefault(part, text) != text:
            raise ValueError(f"the request contains {_list_parts([part])} twice.")
    return parts


def _query_parts(pairs: Iterable[Pair], operation: HttpOperation) -> Iterable[Pair]:
    places = {place.name: place for _, place in operation.by_place["query"]}
    bracketed = {name for name, place in places.items() if place.brackets}
    flat: list[Pair] = []
    for name, text in pairs:
        is_whole = name in bracketed and text[:1] in ("{", "[")
        flat += _form_pairs(name, parse_json(text.encode())) if is_whole else [(name, text)]
    return _texts_by_name(flat, places)


def _texts_by_name(pairs: Iterable[Pair], places: Mapping[str, ArgumentPlace]) -> Iterable[Pair]:
    found: dict[str, list[str]] = {}
    for name, text in pairs:
        plain = text
        # Spaces in JSON objects and lists have no meaning.
        with suppress(UnreadableJSON):
            plain = write_arguments(parse_json(text.encode())) if text[:1] in ("{", "[") else text
        found.setdefault(name, []).append(plain)
    return (
        (name, (places[name].separator if name in places else ",").join(texts))
        for name, texts in found.items()
    )


def _header_parts(
    spec: HTTPRequestSpec, built: HTTPRequestSpec, operation: HttpOperation
) -> Iterator[tuple[Part, str]]:
    for name, value in spec.headers.items():
        if name.lower() == COOKIE.lower():
            cookies = (cookie.strip().partition("=") for cookie in value.split(";"))
            yield from ((("cookie", cookie), text) for cookie, _, text in cookies)
        elif not _is_usual(name.lower(), value, operation, built):
            yield ("header", name.lower()), value.strip()


def _is_usual(name: str, value: str, operation: HttpOperation, built: HTTPRequestSpec) -> bool:
    if name == "accept":
        return media_types_in(value) <= media_types_in(f"{ACCEPT},*/*")
    if name != "content-type":
        return False
    usual = MEDIA_TYPES.get(operation.body_format)
    if usual is None:  # The tool or the file says it.
        headers = headers_of(operation, built, key="", content_type=content_of(operation, built)[1])
        usual = headers.get("content-type", "")
    return media_types_in(value) <= media_types_in(usual)


def _body_parts(body: Any, built: Any, operation: HttpOperation) -> Iterable[tuple[str, str]]:
    if body in (None, {}, ""):
        return ()
    is_form = operation.body_format in ("form", "multipart")
    # Models also write bodies as strings.
    if isinstance(body, str) and not isinstance(built, str):
        if is_form and body[:1] != "{":
            return _texts_by_name(parse_qsl(body, keep_blank_values=True), {})
        body = parse_json(body.encode())
    if not is_form:
        return _leaves(body, "")
    places = {steps_of(place.name)[0]: place for _, place in operation.by_place["body"] if place.name}
    return _texts_by_name(form_pairs(body), places)


def _leaves(value: Any, pointer: str) -> Iterable[tuple[str, str]]:
    if not isinstance(value, dict) or not value:
        # Not by comparison: to Python, 1 and True are the same.
        return ((pointer, json.dumps(value, sort_keys=True)),)
    return (
        leaf for name, inner in value.items() for leaf in _leaves(inner, f"{pointer}{pointer_of([name])}")
    )


def _list_parts(parts: Sequence[Part]) -> str:
    """`query admin, body /price and 3 more`: names, never values."""
    shown = sorted(shorten(printable(" ".join(filter(None, part))).replace("\n", " "), 80) for part in parts)
    rest = len(shown) - MAX_PARTS
    return "the " + ", ".join(shown[:MAX_PARTS]) + (f" and {rest} more" if rest > 0 else "")
