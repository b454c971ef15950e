"""OpenAPI documents with every style of parameter and body that is sent, and arguments for their tools."""

import base64
from random import Random
from typing import Any

import jsonschema_rs

from tests.engines.documented_api import FORM, JSON, MULTIPART

Raw = dict[str, Any]
TEXTS = (
    "a",
    "two words",
    "ü&=%+?#",
    "50 %",
    'a "quote"',
    "semi;colon",
    "tab\there",
    "1",
    "true",
    "null",
    "😀",
)
COMPONENTS: Raw = {
    "schemas": {
        "Colour": {"type": "string", "enum": ["red", "grün", "dark blue"]},
        "Stamp": {"type": "object", "readOnly": True, "properties": {"at": {"type": "string"}}},
        "Line": {
            "type": "object",
            "required": ["sku"],
            "properties": {
                "sku": {"type": "string"},
                "amount": {"type": "integer", "minimum": 1, "maximum": 9},
                "stamp": {"$ref": "#/components/schemas/Stamp"},
            },
            "additionalProperties": False,
        },
        "Tree": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {
                    "type": "array",
                    "maxItems": 2,
                    "items": {"$ref": "#/components/schemas/Tree"},
                },
            },
        },
    },
    "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}},
}
SCALARS: tuple[Raw, ...] = (
    {"type": "string"},
    {"type": "integer", "minimum": -5, "maximum": 500},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 9.5},
    {"type": "boolean"},
    {"type": ["string", "null"]},
    {"$ref": "#/components/schemas/Colour"},
    {"type": "string", "enum": ["asc", "desc"], "default": "asc"},
)
JSON_VALUES: tuple[Raw, ...] = (
    *SCALARS,
    {"$ref": "#/components/schemas/Line"},
    {"$ref": "#/components/schemas/Tree"},
    {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Line"}},
    {"type": "object", "additionalProperties": {"type": "number"}},
    {
        "oneOf": [
            {"type": "integer"},
            {"type": "object", "required": ["all"], "properties": {"all": {"const": 1}}},
        ]
    },
    {},
)
DEMANDS: tuple[Raw, ...] = (
    {},
    {"minProperties": 1},
    {"anyOf": [{"required": ["f0"]}, {"required": ["f1"]}]},
    {"oneOf": [{"required": ["f0"]}, {"required": ["f1", "f2"]}]},
)
FILE: Raw = {"type": "string", "format": "binary"}


class RandomDocuments:
    """Reproducible: the same seed makes the same documents and arguments."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def document(self, operations: int) -> Raw:
        """Of OpenAPI 3.1, without servers."""
        return {
            "openapi": "3.1.0",
            "info": {"title": "Random", "version": "1"},
            "paths": dict(self._operation(number) for number in range(operations)),
            "components": COMPONENTS,
            "security": [{"key": []}],
        }

    def arguments(self, schema: Raw) -> Raw:
        """Some that fit the schema, of which most may be left out."""
        validator = jsonschema_rs.validator_for(schema)
        for _ in range(200):
            made = self._value(schema, schema, depth=0)
            if isinstance(made, dict) and validator.is_valid(made):
                return made
        raise AssertionError(f"nothing fits {schema}")

    def _operation(self, number: int) -> tuple[str, Raw]:
        pick, method = self._random, self._random.choice(["get", "delete", "post", "put", "patch"])
        in_path = [f"p{place}" for place in range(pick.randrange(3))]
        parameters = [self._path_parameter(name) for name in in_path]
        parameters += [self._query_parameter(f"q{place}[x]") for place in range(pick.randrange(4))]
        parameters += [self._header(f"X-H{place}") for place in range(pick.randrange(2))]
        parameters += [self._header(f"c{place}") | {"in": "cookie"} for place in range(pick.randrange(3))]
        operation: Raw = {"operationId": f"op{number}", "parameters": parameters, "responses": {}}
        if method not in ("get", "delete"):
            operation["requestBody"] = self._body()
        if pick.random() < 0.2:
            operation["security"] = pick.choice([[], [{}]])
        return f"/op{number}" + "".join(f"/x/{{{name}}}" for name in in_path), {method: operation}

    def _path_parameter(self, name: str) -> Raw:
        scalar = self._random.choice(SCALARS[:4])
        schema = self._random.choice([scalar, {"type": "array", "minItems": 1, "items": scalar}])
        return {"name": name, "in": "path", "required": True, "schema": schema}

    def _query_parameter(self, name: str) -> Raw:
        parameter: Raw = {"name": name, "in": "query", "required": self._random.random() < 0.3}
        if self._random.random() < 0.3:
            schema = self._random.choice(JSON_VALUES)
            return parameter | {"content": {JSON: {"schema": schema}}}
        if self._random.random() < 0.15:
            return parameter | {"schema": JSON_VALUES[9]}
        scalar = self._random.choice(SCALARS)
        schema = self._random.choice(
            [scalar, {"type": "array", "minItems": 1, "items": self._random.choice(SCALARS[:4])}]
        )
        return parameter | {"schema": schema, "explode": self._random.random() < 0.5}

    def _header(self, name: str) -> Raw:
        return {"name": name, "in": "header", "schema": self._random.choice(SCALARS[1:4])}

    def _body(self) -> Raw:
        media_type = self._random.choice([JSON, JSON, FORM, MULTIPART])
        fields = {f"f{place}": self._field(media_type) for place in range(3)}
        fields["made"] = {"$ref": "#/components/schemas/Stamp"}
        schema: Raw = {"type": "object", "properties": fields, "additionalProperties": False}
        schema |= self._random.choice(DEMANDS)
        if self._random.random() < 0.3:
            schema["required"] = ["f2", "made"][: self._random.randrange(3)]
            fields.pop("made")
            schema["required"] = [name for name in schema["required"] if name in fields]
        whole = self._random.choice([*JSON_VALUES[6:9], schema, schema]) if media_type == JSON else schema
        return {"required": self._random.random() < 0.8, "content": {media_type: {"schema": whole}}}

    def _field(self, media_type: str) -> Raw:
        listed = {"type": "array", "minItems": 1, "items": self._random.choice(SCALARS[:4])}
        if media_type == JSON:
            return self._random.choice([*JSON_VALUES, listed])
        choices = [*SCALARS, listed, *JSON_VALUES[7:9]]
        if media_type == MULTIPART:
            choices += [FILE, FILE, {"type": "array", "minItems": 1, "items": FILE}]
        return self._random.choice(choices)

    def _value(self, schema: Any, root: Raw, *, depth: int) -> Any:
        if not isinstance(schema, dict):
            return self._text()
        if "$ref" in schema:
            return self._value(root["$defs"][schema["$ref"].rpartition("/")[2]], root, depth=depth + 1)
        for word in ("oneOf", "anyOf"):
            if word in schema:
                return self._value(self._random.choice(schema[word]), root, depth=depth + 1)
        if "enum" in schema or "const" in schema:
            return self._random.choice(schema.get("enum") or [schema["const"]])
        kinds = schema.get("type", ["string", "integer", "boolean"])
        return self._of_type(
            kinds if isinstance(kinds, str) else self._random.choice(kinds), schema, root, depth
        )

    def _of_type(self, kind: str, schema: Raw, root: Raw, depth: int) -> Any:
        pick = self._random
        match kind:
            case "integer":
                return pick.randint(schema.get("minimum", -9), schema.get("maximum", 9))
            case "number":
                return pick.choice([0.5, 1, 2.25, 1e-7, 9.5])
            case "boolean":
                return pick.random() < 0.5
            case "null":
                return None
            case "array":
                fewest = schema.get("minItems", 0)
                most = min(schema.get("maxItems", 3), 3 if depth < 4 else fewest)
                items = schema.get("items", {})
                if isinstance(items, dict):
                    # Files are described at the list.
                    items = {"description": schema.get("description", "")} | items
                return [self._value(items, root, depth=depth + 1) for _ in range(pick.randint(fewest, most))]
            case "object":
                return self._object(schema, root, depth)
        return self._file() if "A file:" in schema.get("description", "") else self._text()

    def _object(self, schema: Raw, root: Raw, depth: int) -> Raw:
        required, further = schema.get("required", ()), schema.get("additionalProperties", False)
        made = {
            name: self._value(inner, root, depth=depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in required or (depth < 6 and self._random.random() < 0.6)
        }
        if isinstance(further, dict):
            made[self._text()] = self._value(further, root, depth=depth + 1)
        return made

    def _text(self) -> str:
        return self._random.choice(TEXTS)

    def _file(self) -> str:
        content = base64.b64encode(self._random.randbytes(20)).decode()
        return self._random.choice(
            [f"data:image/png;base64,{content}", "plain\ntext ü", f"data:;base64,{content}"]
        )
