"""What providers of models and clients publish about the tools that they take, as small checkers.

Each yields what it would refuse, with the place.
"""

import re
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]


def walk(schema: Any, path: str = "#") -> Iterator[tuple[str, Schema]]:
    """Every subschema, where a schema can stand."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}/properties/{name}")
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, inner in enumerate(schema.get(keyword, ())):
            yield from walk(inner, f"{path}/{keyword}/{number}")
    for keyword in ("items", "additionalProperties", "not"):
        yield from walk(schema.get(keyword), f"{path}/{keyword}")
    for keyword in ("$defs", "definitions", "patternProperties"):
        for name, inner in schema.get(keyword, {}).items():
            yield from walk(inner, f"{path}/{keyword}/{name}")


def claude(name: str, schema: Schema) -> Iterator[str]:
    """https://platform.claude.com/docs/en/managed-agents/self-hosted-sandboxes: the API "rejects reference
    keywords such as $ref anywhere in a custom tool's input_schema [...] also rejects top-level oneOf, anyOf,
    and allOf, and property names outside letters, digits, underscores, dots, and hyphens (1-64 characters)".
    https://platform.claude.com/docs/en/agents-and-tools/tool-use/implement-tool-use: a name "must match the
    regex ^[a-zA-Z0-9_-]{1,64}$".
    """
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
        yield f"name {name}"
    if schema.get("type") != "object":
        yield "#: no object"
    yield from (f"#: {keyword}" for keyword in ("oneOf", "anyOf", "allOf") if keyword in schema)
    for path, node in walk(schema):
        yield from (f"{path}: {keyword}" for keyword in ("$ref", "$dynamicRef", "$defs") if keyword in node)
        for key in node.get("properties", {}):
            if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key):
                yield f"{path}: key {key!r}"


OPENAI_STRICT = {
    "type", "description", "properties", "required", "additionalProperties", "items", "enum", "const",
    "anyOf", "$ref", "$defs", "pattern", "format", "multipleOf", "maximum", "exclusiveMaximum", "minimum",
    "exclusiveMinimum", "minItems", "maxItems", "title",
}  # fmt: skip


def openai_strict(name: str, schema: Schema) -> Iterator[str]:
    """https://platform.openai.com/docs/guides/structured-outputs#supported-schemas: "Root objects must not be
    anyOf and must be an object"; "all fields or function parameters must be specified as required";
    "additionalProperties: false must always be set in objects"; at most 5,000 properties, 10 levels, 120,000
    characters of names and values, 1,000 values in all, and 15,000 characters in one of over 250 values;
    `allOf`, `not`, `dependentRequired`, `dependentSchemas`, `if`, `then` and `else` are not supported.
    https://platform.openai.com/docs/api-reference/chat/create: a function's name "must be a-z, A-Z, 0-9, or
    contain underscores and dashes, with a maximum length of 64".

    That all fields are required is what clients see to (`ensure_strict_json_schema` of openai-agents).
    """
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
        yield f"name {name}"
    if schema.get("type") != "object" or "anyOf" in schema:
        yield "#: no object"
    nodes = list(walk(schema))
    for path, node in nodes:
        for problem in _openai_node(path, node):
            yield f"{path}: {problem}"
    if sum(len(node.get("properties", {})) for _, node in nodes) > 5_000:
        yield "#: too many properties"
    if sum(len(node.get("enum", [])) for _, node in nodes) > 1_000:
        yield "#: too many values"
    if sum(len(key) for _, node in nodes for key in node.get("properties", {})) > 120_000:
        yield "#: too many characters"


def _openai_node(path: str, node: Schema) -> Iterator[str]:
    if unknown := node.keys() - OPENAI_STRICT:
        yield ", ".join(sorted(unknown))
    if not node.keys() & {"type", "anyOf", "$ref", "enum", "const"}:
        yield "no type"
    if node.get("type") == "object" and node.get("additionalProperties") is not False:
        yield "additionalProperties"
    if node.get("type") == "array" and not isinstance(node.get("items"), dict):
        yield "items"
    if len(values := node.get("enum", [])) > 250 and len("".join(map(str, values))) > 15_000:
        yield "enum too large"
    if path.count("/properties/") > 9:
        yield "nested too deep"


def openai_optional_fields_take_null(name: str, schema: Schema) -> Iterator[str]:
    """The same page: "it is possible to emulate an optional parameter by using a union type with null"."""
    for path, node in walk(schema):
        for key, inner in node.get("properties", {}).items():
            types = [part.get("type") for part in inner.get("anyOf", [inner])]
            if key not in node.get("required", []) and "null" not in types:
                yield f"{path}: {key} cannot be left out"


GEMINI = {
    "type", "description", "properties", "required", "items", "enum", "anyOf", "additionalProperties",
    "format", "title", "minItems", "maxItems", "minimum", "maximum", "propertyOrdering",
}  # fmt: skip
"""What both `parameters` (Schema) and `parametersJsonSchema` of a FunctionDeclaration know; the SDKs take
`additionalProperties` out for the former."""


def gemini(name: str, schema: Schema) -> Iterator[str]:
    """https://cloud.google.com/vertex-ai/docs/reference/rest/v1beta1/FunctionDeclaration: a name "must start
    with a letter or an underscore. Must be a-z, A-Z, 0-9, or contain underscores, dots and dashes, with a
    maximum length of 64"; "parameter names must start with a letter or an underscore and must only contain
    chars a-z, A-Z, 0-9, or underscores with a maximum length of 64".
    https://ai.google.dev/api/caching#Schema: one type; `enum` has texts. Its errors: "properties: should be
    non-empty for OBJECT type", "items: missing field", "only allowed for OBJECT type", "enum[0]: cannot be
    empty" (agno-agi/agno#2112, browser-use/browser-use#3786, anomalyco/opencode#11889).
    """
    if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}", name):
        yield f"name {name}"
    for path, node in walk(schema):
        for problem in (*_gemini_node(path, node), *_gemini_members(node)):
            yield f"{path}: {problem}"


def _gemini_node(path: str, node: Schema) -> Iterator[str]:
    kind = node.get("type")
    if unknown := node.keys() - GEMINI:
        yield ", ".join(sorted(unknown))
    if "anyOf" not in node and not isinstance(kind, str):
        yield f"type {kind!r}"
    if kind == "object" and not node.get("properties") and path != "#":
        yield "no properties"
    if kind == "array" and "items" not in node:
        yield "no items"
    if not all(isinstance(value, str) and value for value in node.get("enum", [])):
        yield "enum"


def _gemini_members(node: Schema) -> Iterator[str]:
    if node.get("type") != "object" and node.keys() & {"properties", "required"}:
        yield "properties of what is no object"
    for key in node.get("properties", {}):
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}", key):
            yield f"key {key!r}"
    if set(node.get("required", ())) - node.get("properties", {}).keys():
        yield "required is not there"


def cursor(name: str, schema: Schema, *, server: str = "workflow-catalogue") -> Iterator[str]:
    """Cursor hides tools: "Combined server and tool name length (60) exceeds 60 characters"
    (aashari/mcp-server-atlassian-confluence#16). Claude Code calls them mcp__server__tool; 64 are taken.
    """
    if len(server) + len(name) >= 60 or len(f"mcp__{server}__{name}") > 64:
        yield f"name {name}"


RULES = (claude, openai_strict, openai_optional_fields_take_null, gemini)
