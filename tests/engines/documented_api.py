"""An HTTP API that holds requests to its own OpenAPI 3.1 document, and answers 400 with what is wrong.

It reads requests by OpenAPI's rules and shares no code with the product, which writes them.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email import message_from_bytes
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, unquote

import jsonschema_rs

from tests.engines.target_wire import Arrived, Reply, TargetApi

Raw = dict[str, Any]
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"


class Wrong(Exception):
    """What of a request is not as the document says."""


@dataclass(frozen=True)
class Operation:
    raw: Raw
    path: Raw
    """The texts in the path, by parameter."""


class DocumentedApi:
    """Its `answer` is for `running_target_api`."""

    def __init__(self, document: Raw) -> None:
        self._document = document
        self.accepted = 0
        self.objections: list[str] = []

    def answer(self, _: TargetApi, request: Arrived) -> Reply:
        try:
            self._check(request)
        except Wrong as wrong:
            self.objections.append(f"{request.method} {request.target}: {wrong} ({request.body[:300]!r})")
            return Reply(400, {"message": str(wrong)})
        self.accepted += 1
        return Reply(200, {"done": True})

    def _check(self, request: Arrived) -> None:
        operation = self._find(request)
        self._check_credentials(operation, request)
        parameters = [self._resolved(one) for one in operation.raw.get("parameters", ())]
        self._check_query([one for one in parameters if one["in"] == "query"], request)
        cookies = {name: one.value for name, one in SimpleCookie(request.header("Cookie") or "").items()}
        for one in parameters:
            if one["in"] == "path":
                self._check_text(one, operation.path[one["name"]])
            elif one["in"] == "cookie":
                self._check_header(one, cookies.pop(one["name"], None))
            elif one["in"] == "header":
                self._check_header(one, request.header(one["name"]))
        if cookies:
            raise Wrong(f"unknown cookies: {', '.join(cookies)}")
        self._check_body(operation.raw.get("requestBody"), request)

    def _find(self, request: Arrived) -> Operation:
        for template, item in self._document["paths"].items():
            pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(template))
            found = re.fullmatch(pattern, request.path)
            if found and request.method.lower() in item:
                return Operation(item[request.method.lower()], found.groupdict())
        raise Wrong("no such operation")

    def _check_credentials(self, operation: Operation, request: Arrived) -> None:
        wanted = operation.raw.get("security", self._document["security"])
        is_sent = request.header("X-Key") is not None
        if is_sent != (wanted not in ([], [{}])):
            raise Wrong("credentials where none are taken" if is_sent else "no credentials")

    def _check_query(self, parameters: list[Raw], request: Arrived) -> None:
        query: dict[str, list[str]] = {}
        for name, value in parse_qsl(request.target.partition("?")[2], True, strict_parsing=False):
            query.setdefault(name, []).append(value)
        bracketed = [one for one in parameters if self._is_list_of_objects(one)]
        for one in bracketed:
            self._check_list_of_objects(one, query)
        self._check_flat([one for one in parameters if one not in bracketed], query)
        if query:
            raise Wrong(f"unknown in the query: {', '.join(query)}")

    def _check_flat(self, parameters: list[Raw], query: dict[str, list[str]]) -> None:
        for one in parameters:
            if (said := query.pop(one["name"], None)) is None:
                self._check_required(one)
                continue
            if "content" in one:
                self._validate(json.loads(said[0]), one["content"][JSON]["schema"], one["name"])
                continue
            schema = self._resolved(one["schema"])
            if "array" in self._types(schema):
                items = said if one.get("explode", True) else said[0].split(",")
                self._validate(self._typed_items(items, schema), schema, one["name"])
            elif len(said) > 1:
                raise Wrong(f"{one['name']} stands in the query {len(said)} times")
            else:
                self._validate(self._typed(said[0], schema), schema, one["name"])

    def _is_list_of_objects(self, parameter: Raw) -> bool:
        schema = self._resolved(parameter.get("schema", {}))
        return "object" in self._types(self._resolved(schema.get("items", {})))

    def _check_list_of_objects(self, parameter: Raw, query: dict[str, list[str]]) -> None:
        """`name[0][field]=value`, as PHP, Rails, Express and ASP.NET read it."""
        schema, name = self._resolved(parameter["schema"]), parameter["name"]
        fields = self._properties(schema["items"])
        found: dict[int, Raw] = {}
        for key in list(query):
            if (named := re.fullmatch(re.escape(name) + r"\[(\d+)\]\[(\w+)\]", key)) is not None:
                (text,) = query.pop(key)
                field = self._resolved(fields[named[2]])
                found.setdefault(int(named[1]), {})[named[2]] = self._typed(text, field)
        if sorted(found) != [*range(len(found))]:
            raise Wrong(f"{name} has the items {sorted(found)}")
        if found:
            self._validate([found[number] for number in sorted(found)], schema, name)
        else:
            self._check_required(parameter)

    def _check_header(self, parameter: Raw, text: str | None) -> None:
        if text is None:
            self._check_required(parameter)
        else:
            self._check_text(parameter, text, is_encoded=False)

    def _check_text(self, parameter: Raw, text: str, *, is_encoded: bool = True) -> None:
        """By the style `simple`."""
        decoded = unquote(text) if is_encoded else text
        if "content" in parameter:
            self._validate(json.loads(decoded), parameter["content"][JSON]["schema"], parameter["name"])
            return
        schema = self._resolved(parameter["schema"])
        is_list = "array" in self._types(schema)
        value = self._typed_items(decoded.split(","), schema) if is_list else self._typed(decoded, schema)
        self._validate(value, schema, parameter["name"])

    def _check_required(self, parameter: Raw) -> None:
        if parameter.get("required"):
            raise Wrong(f"{parameter['name']} is missing")

    def _check_body(self, described: Raw | None, request: Arrived) -> None:
        content_type = request.header("Content-Type") or ""
        if described is None:
            if request.body:
                raise Wrong("a body where there is none")
            return
        # A form without a field is empty, and still a form.
        if not request.body and not content_type.startswith(FORM):
            if described.get("required"):
                raise Wrong("no body")
            return
        media_type = content_type.partition(";")[0]
        if media_type not in described["content"]:
            raise Wrong(f"a body of the type {content_type}")
        media = described["content"][media_type]
        schema = media["schema"]
        body = {
            JSON: lambda: json.loads(request.body),
            FORM: lambda: self._form(parse_qsl(request.body.decode("ascii"), True), schema),
            MULTIPART: lambda: self._multipart(content_type, request.body, media),
        }[media_type]()
        self._refuse_read_only(body, schema, "body")
        self._validate(body, schema, "body")

    def _form(self, pairs: Iterable[tuple[str, str]], schema: Raw) -> Raw:
        said: dict[str, list[Any]] = {}
        for name, value in pairs:
            said.setdefault(name, []).append(value)
        return self._object(said, schema)

    def _object(self, said: dict[str, list[Any]], schema: Raw) -> Raw:
        body, known = {}, self._properties(schema)
        for name, values in said.items():
            if name not in known:
                raise Wrong(f"the form has no {name}")
            field = self._resolved(known[name])
            if "array" in self._types(field):
                body[name] = self._typed_items(values, field)
            elif len(values) > 1:
                raise Wrong(f"{name} stands in the form {len(values)} times")
            else:
                body[name] = self._typed(values[0], field)
        return body

    def _multipart(self, content_type: str, content: bytes, media: Raw) -> Raw:
        if content.startswith(b"--") and content.endswith(b"--\r\n") and content.count(b"\r\n") == 1:
            # A form without a field, as browsers send it.
            return {}
        message = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + content)
        if message.defects or not message.is_multipart():
            raise Wrong(f"the parts cannot be read: {message.defects}")
        said: dict[str, list[Any]] = {}
        known = self._properties(media["schema"])
        for part in message.get_payload():
            name = part.get_param("name", header="content-disposition")
            if name not in known:
                raise Wrong(f"the form has no {name}")
            schema = self._resolved(known[name])
            binary = "binary" in (schema.get("format"), self._resolved(schema.get("items", {})).get("format"))
            if binary != (part.get_filename() is not None):
                raise Wrong(f"{name} is {'no' if binary else 'a'} file")
            payload = part.get_payload(decode=True)
            is_json = part.get_content_type() == JSON
            text = payload.decode("latin-1" if binary else "utf-8")
            said.setdefault(name, []).append(json.loads(text) if is_json else text)
        return self._object(said, media["schema"])

    def _refuse_read_only(self, value: Any, schema: Raw, place: str) -> None:
        if not isinstance(value, dict):
            return
        for name, field in self._properties(schema).items():
            if name in value:
                if field.get("readOnly") or self._resolved(field).get("readOnly"):
                    raise Wrong(f"{place}.{name} is read-only")
                self._refuse_read_only(value[name], field, f"{place}.{name}")

    def _properties(self, schema: Raw) -> dict[str, Raw]:
        schema = self._resolved(schema)
        found = dict(schema.get("properties", {}))
        for part in schema.get("allOf", ()):
            found |= self._properties(part)
        return found

    def _typed_items(self, texts: Iterable[Any], schema: Raw) -> list[Any]:
        items = self._resolved(schema.get("items", {}))
        return [self._typed(text, items) for text in texts]

    def _typed(self, text: Any, schema: Raw) -> Any:
        if not isinstance(text, str):
            return text
        for kind in self._types(schema):
            match kind:
                case "object":
                    # A form's own rule for objects without a style.
                    return json.loads(text)
                case "boolean" if text in ("true", "false"):
                    return text == "true"
                case "integer" if re.fullmatch(r"-?[0-9]+", text):
                    return int(text)
                case "number" if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", text):
                    return float(text)
        return text

    def _types(self, schema: Raw) -> list[str]:
        named = schema.get("type", [])
        return [named] if isinstance(named, str) else named

    def _resolved(self, value: Raw) -> Raw:
        while "$ref" in value:
            found: Any = self._document
            for step in value["$ref"][2:].split("/"):
                found = found[step]
            value = found
        return value

    def _validate(self, value: Any, schema: Raw, place: str) -> None:
        whole = {**schema, "components": self._document.get("components", {})}
        for problem in _problems(whole, value):
            raise Wrong(f"{place}: {problem}")


def _problems(schema: Raw, value: Any) -> Iterator[str]:
    for error in jsonschema_rs.validator_for(schema).iter_errors(value):
        yield f"{list(error.instance_path)}: {error.message}"
