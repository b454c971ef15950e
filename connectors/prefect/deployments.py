"""Deployments as workflows: names, descriptions, parameters."""

from collections.abc import Iterator
from typing import Any

from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.errors import Rejected
from connectors.formats.json import TooDeep

MARK = "__prefect_kind"
OF_PREFECT = ("position", "block_type_slug", "block_schema_references", "secret_fields", "prefect_kind")
"""Keywords of Prefect's forms, which do not constrain arguments."""
SUBSCHEMAS = ("items", "additionalProperties", "not", "contains", "if", "then", "else")
LISTS_OF_SUBSCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS_OF_SUBSCHEMAS = ("properties", "definitions", "$defs", "patternProperties")


def is_evaluated(value: Any) -> bool:
    """Whether Prefect would evaluate the value or one nested in it."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as found if MARK in found:
                return True
            case dict() as found:
                waiting.extend(found.values())
            case list() as found:
                waiting.extend(found)
    return False


def refuse_evaluated(arguments: dict[str, Any]) -> None:
    """Raises Rejected: evaluated values could read the workspace's variables."""
    if is_evaluated(arguments):
        raise Rejected(
            f"The arguments contain the key {MARK}, whose value Prefect would evaluate as a template or a "
            "variable instead of passing it on. Give the value itself."
        )


def read_deployment(
    raw: Any, flow_names: dict[str, str], *, position: int
) -> WorkflowDefinition | RejectedDefinition:
    """A paused deployment counts: a pause stops schedules, not requested runs.

    Values that change whenever a worker restarts are left out, since each change counts as one of the
    workflow.
    """
    if not isinstance(raw, dict) or isinstance(raw, TooDeep):
        return parse_definition(raw, position=position)
    flow = flow_names.get(str(raw.get("flow_id")), "")
    name, tags = name_of(raw, flow_names), raw.get("tags")
    definition = {
        "id": raw.get("id"),
        "name": name,
        "description": _description(raw, name),
        "version": raw.get("version"),
        "tags": [tag for tag in tags if isinstance(tag, str) and tag] if isinstance(tags, list) else [],
        "inputSchema": input_schema(raw),
        "metadata": {
            "flow": flow,
            "deployment": raw.get("name"),
            "entrypoint": raw.get("entrypoint"),
            "work_pool": raw.get("work_pool_name"),
            "prefect_checks_parameters": raw.get("enforce_parameter_schema") is True,
        },
    }
    return parse_definition(definition, position=position)


def name_of(raw: dict[str, Any], flow_names: dict[str, str]) -> Any:
    """`flow/deployment`, Prefect's full name."""
    flow, deployment = flow_names.get(str(raw.get("flow_id")), ""), raw.get("name")
    return f"{flow}/{deployment}" if flow and isinstance(deployment, str) else deployment


def _description(raw: dict[str, Any], name: Any) -> str:
    """Prefect stores "None" for a flow without a description."""
    description = raw.get("description")
    if isinstance(description, str) and description.strip() not in ("", "None"):
        return description
    return f"Runs the Prefect deployment {name}, which does not say what it does."


def input_schema(raw: dict[str, Any]) -> Any:
    """The parameters' schema, with the deployment's values as defaults.

    None if there is none; an unusable schema stays as it is, for the catalogue to report.
    """
    given = raw.get("parameter_openapi_schema")
    if given is None or not isinstance(given, dict):
        return given
    schema = _cleaned(given)
    properties = schema.get("properties")
    if schema.get("type") == "object" and isinstance(properties, dict):
        _set_defaults(schema, properties, raw.get("parameters"))
        # Prefect accepts unknown parameters, and then fails the run.
        schema.setdefault("additionalProperties", False)
    return schema


def _set_defaults(schema: dict[str, Any], properties: dict[str, Any], values: Any) -> None:
    values = values if isinstance(values, dict) else {}
    for name in values.keys() & properties.keys():
        if isinstance(properties[name], dict) and not is_evaluated(values[name]):
            properties[name]["default"] = values[name]
    if isinstance(required := schema.get("required"), list):
        schema["required"] = [name for name in required if name not in values]
        if not schema["required"]:
            del schema["required"]


def _cleaned(schema: Any) -> Any:
    """Without Prefect's keywords and titles that repeat a name, at every level."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in _parts(schema) if key not in OF_PREFECT}
    # Prefect writes the keyword of an older draft of JSON Schema.
    return {"$defs" if key == "definitions" else key: value for key, value in kept.items()}


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in MAPS_OF_SUBSCHEMAS and isinstance(value, dict):
            parts = {name: _cleaned(part) for name, part in value.items()}
            for name, part in parts.items():
                if isinstance(part, dict) and _plain(part.get("title")) == _plain(name):
                    del part["title"]
            yield key, parts
        elif key in LISTS_OF_SUBSCHEMAS and isinstance(value, list):
            yield key, [_cleaned(part) for part in value]
        elif key in SUBSCHEMAS:
            yield key, _cleaned(value)
        elif key == "$ref" and isinstance(value, str):
            yield key, value.replace("#/definitions/", "#/$defs/", 1)
        else:
            yield key, value


def _plain(text: Any) -> Any:
    return text.lower().replace(" ", "_") if isinstance(text, str) else text
