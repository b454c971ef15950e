"""Swagger 2.0 documents as OpenAPI 3.0, as far as requests and responses need it."""

from collections.abc import Callable, Iterable
from typing import Any

from connectors.formats.json import as_object
from connectors.formats.json_schema import value_at
from connectors.http_tools.media_types import FORM, MULTIPART, is_form, is_multipart

METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch"})
BODIES = ("body", "formData")
SEVERAL = "x-several-bodies"  # Their names, in a body that was made of them
LONGEST_CHAIN = 20
ABOUT_PARAMETERS = frozenset(
    {"name", "in", "description", "required", "schema", "collectionFormat", "allowEmptyValue"}
)
"""Keywords of a parameter; all others are those of its schema."""
STYLES = {"pipes": "pipeDelimited", "ssv": "spaceDelimited", "tsv": "tabDelimited"}
FLOWS = {"application": "clientCredentials", "accessCode": "authorizationCode"}
LOCAL = ("localhost", "127.0.0.1", "[::1]")
Object = dict[str, Any]


def openapi_of(value: Object, *, object_of: Callable[[list[tuple[str, Any]]], Object]) -> Object:
    """References to definitions, parameters and responses keep their targets. What cannot be read stays as it
    is: its operation is refused later. `object_of` makes an object from pairs that may repeat a key."""
    converter = _Converter(value, object_of)
    schemes = _mapped(value.get("securityDefinitions"), _scheme, object_of)
    return value | {
        "openapi": "3.0.3",
        "servers": _servers(value),
        "components": {"securitySchemes": schemes},
        "parameters": _mapped(value.get("parameters"), _parameter, object_of),
        "responses": _mapped(
            value.get("responses"), lambda one: _response(one, converter.produces), object_of
        ),
        "paths": _mapped(value.get("paths"), converter.path_item, object_of),
    }


def _mapped(value: Any, convert: Callable[[Any], Any], object_of: Callable[..., Object]) -> Any:
    return (
        object_of([(key, convert(one)) for key, one in value.items()]) if isinstance(value, dict) else value
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
    """Of a parameter, and of a list's items."""
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
    def __init__(self, value: Object, object_of: Callable[..., Object]) -> None:
        self.value = value
        self.object_of = object_of
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

        return self.object_of([(key, converted(key, value)) for key, value in raw.items()])

    def _operation(self, raw: Object, shared: list[Object]) -> Object:
        own, others = self._split(raw.get("parameters"))
        produces = _texts(raw.get("produces"), self.produces)
        changed = {
            "parameters": others,
            "responses": _mapped(raw.get("responses"), lambda one: _response(one, produces), self.object_of),
        }
        # Fields of a form add to those of the path; anything else replaces them.
        is_all_form = all(one["in"] == "formData" for one in (*shared, *own))
        names = {one.get("name") for one in own}
        inherited = [one for one in shared if not own or (is_all_form and one.get("name") not in names)]
        body = self._body(inherited + own, _texts(raw.get("consumes"), self.consumes))
        changed |= {"requestBody": body} if body else {}
        pairs = [(key, changed.get(key, value)) for key, value in raw.items() if key != "requestBody"]
        return self.object_of([*pairs, *((key, one) for key, one in changed.items() if key not in raw)])

    def _split(self, parameters: Any) -> tuple[list[Object], Any]:
        """Those of the body, and the others."""
        if not isinstance(parameters, list):
            return [], parameters
        found = [(one, self._target(one)) for one in parameters]
        bodies = [target for _, target in found if target.get("in") in BODIES]
        return bodies, [_parameter(one) for one, target in found if target.get("in") not in BODIES]

    def _target(self, one: Any) -> Object:
        """Behind local references; empty for what cannot be read."""
        try:
            for _ in range(LONGEST_CHAIN):
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
        about = {key: described[key] for key in ("description", SEVERAL) if key in described}
        return about | {"required": described.get("required") is True, "content": content}

    def _together(self, bodies: list[Object]) -> Object:
        """Several bodies as one, which 2.0 does not allow: their fields, else they themselves as fields."""
        names, schemas = [str(one.get("name")) for one in bodies], [one.get("schema", {}) for one in bodies]
        needed = [name for name, one in zip(names, bodies, strict=True) if one.get("required") is True]
        schema: Object = {"allOf" if len(needed) == len(names) else "anyOf": schemas}
        if not all({"properties", "allOf"} & self._target(one).keys() for one in schemas):
            properties = dict(zip(names, schemas, strict=True))
            schema = {"type": "object", "properties": properties, "required": needed}
        return {"required": bool(needed), "schema": schema, SEVERAL: names}


def _form(parameters: Iterable[Object], consumes: list[str]) -> Object:
    """With a body beside its fields, as frameworks describe a part that is JSON."""
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
    about: Object = {SEVERAL: [*fields]} if bodies else {}
    return about | {"required": bool(required), "content": {MULTIPART if in_parts else FORM: media}}


def _field(raw: Object) -> Object:
    if raw["in"] == "body":
        return as_object(raw.get("schema"))
    said = {"description": raw["description"]} if "description" in raw else {}
    return _schema_of(raw) | said
