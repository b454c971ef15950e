"""Handlers: which become workflows, what arguments they take, and how a start reaches them."""

import re
from collections.abc import Iterator
from math import inf, isfinite
from typing import Any, Literal
from uuid import UUID

from connectors.definitions import RejectedDefinition, WorkflowDefinition, parse_definition
from connectors.errors import NotFound, Rejected
from connectors.formats.json import as_object
from connectors.network.client import fill_path
from connectors.protocol import WorkflowRef

SERVICE, OBJECT, WORKFLOW = "Service", "VirtualObject", "Workflow"
DEFINITIONS = ("$defs", "definitions")  # References into them must stay valid
DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([a-zµ]+)")
"""A part of a duration in Restate, such as "1h 30m"."""
SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 0.0, "µs": 0.0, "ns": 0.0}
SHORTEST_RETENTION_SECONDS = 600.0  # The time in which a start without an answer is looked up
LABEL = "workflow-catalogue"  # In the metadata of a workflow's shared handler: "query" or "signal"
Takes = Literal["nothing", "fields", "value"]
"""No body; a body with the arguments as fields; the argument `input` as the body."""


def read_services(
    services: list[Any], *, workflow_timeout_seconds: int
) -> Iterator[WorkflowDefinition | RejectedDefinition]:
    """Public handlers, except those that are queries and signals of a workflow's run."""
    for position, (service, handler) in enumerate(_listed(services)):
        if isinstance(service, dict):
            yield _read_handler(service, handler, workflow_timeout_seconds, position)
        else:
            yield parse_definition(service, position=position)


def _listed(services: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Each handler that is meant for callers, with its service."""
    for service in services:
        if not isinstance(service, dict) or not isinstance(service.get("handlers"), list):
            yield service, None
        elif service.get("public") is not False:
            for one in service["handlers"]:
                # An unreadable one counts, so that it is rejected with a reason.
                is_readable = isinstance(one, dict)
                if not is_readable or (one.get("public") is not False and not _is_shared(service, one)):
                    yield service, one


def _is_shared(service: dict[str, Any], handler: dict[str, Any]) -> bool:
    # The handler that is a workflow's run has the type of its service.
    return service.get("ty") == WORKFLOW and handler.get("ty") != WORKFLOW


def _read_handler(
    service: dict[str, Any], handler: Any, timeout_seconds: int, position: int
) -> WorkflowDefinition | RejectedDefinition:
    name, kind = service.get("name"), service.get("ty")
    if not isinstance(handler, dict) or not all(isinstance(one, str) for one in (name, handler.get("name"))):
        return parse_definition({"name": name}, position=position)
    target = f"{name}/{handler['name']}"
    if problem := _problem_with(service, handler):
        return RejectedDefinition(position=position, id=target, name=target, reason=problem)
    takes, schema = _arguments(handler, besides=("key",) if kind == OBJECT else ())
    shared = _shared_handlers(service) if kind == WORKFLOW else []
    retention = _retention_seconds(service, handler)
    texts = (handler.get("documentation"), service.get("documentation"))
    documented = (text for text in texts if isinstance(text, str) and text.strip())
    raw = {
        "id": target,
        "name": target,
        "description": next(documented, f"Runs {target} at Restate, which does not say what it does."),
        "inputSchema": _with_key(schema, str(name)) if kind == OBJECT else schema,
        "outputSchema": handler.get("output_json_schema"),
        "queries": [_interaction(one) for one in shared if _is_query(one)],
        "signals": [_interaction(one) for one in shared if not _is_query(one)],
        "metadata": {
            "type": kind,
            "takes": takes,
            "shared": {str(one["name"]): _arguments(one)[0] for one in shared},
            "labels": {**_labels(service), **_labels(handler)},
            **({"remembered_seconds": retention} if isfinite(retention) else {}),
        },
    }
    if kind == WORKFLOW:
        raw["timeout_seconds"] = timeout_seconds
    return parse_definition(raw, position=position)


def _problem_with(service: dict[str, Any], handler: dict[str, Any]) -> str:
    kind = service.get("ty")
    if kind not in (SERVICE, OBJECT, WORKFLOW):
        return f"its service is of the type {str(kind)[:50]!r}, which this connector does not know"
    if not _takes_json(handler):
        return f"its input is {str(handler.get('input_description'))[:100]}, but calls can only send JSON"
    if (retention := _retention_seconds(service, handler)) < SHORTEST_RETENTION_SECONDS:
        return (
            f"Restate keeps its results for only {retention:g} s ({_retention_name(service)}); looking up a "
            f"start requires at least {SHORTEST_RETENTION_SECONDS:g} s"
        )
    return ""


def _retention_name(service: dict[str, Any]) -> str:
    is_workflow = service.get("ty") == WORKFLOW
    return "workflow_completion_retention" if is_workflow else "idempotency_retention"


def _retention_seconds(service: dict[str, Any], handler: dict[str, Any]) -> float:
    """How long an invocation and its key are remembered after its end; infinite if Restate does not say."""
    name = _retention_name(service)
    written = handler.get(name, service.get(name))
    parts = DURATION.findall(written) if isinstance(written, str) else []
    # Other units are weeks, months and years.
    return sum(float(number) * SECONDS.get(unit, 604_800.0) for number, unit in parts) if parts else inf


def _takes_json(handler: dict[str, Any]) -> bool:
    described = str(handler.get("input_description") or "").lower()
    return not described or "json" in described or "*" in described or described == "none"


def _labels(of: dict[str, Any]) -> dict[str, Any]:
    return as_object(of.get("metadata"))


def _arguments(handler: dict[str, Any], *, besides: tuple[str, ...] = ()) -> tuple[Takes, dict[str, Any]]:
    """The kind of the body, and the schema of the arguments. `besides`: names of other arguments."""
    given, described = handler.get("input_json_schema"), str(handler.get("input_description") or "")
    if given is None and described.lower() == "none":
        return "nothing", {"type": "object", "properties": {}, "additionalProperties": False}
    if isinstance(given, dict) and given.get("type") == "object":
        fields = given.get("properties")
        if isinstance(fields, dict) and not fields.keys() & {*besides}:
            return "fields", given
    schema = dict(as_object(given))
    hoisted = {name: schema.pop(name) for name in DEFINITIONS if name in schema}
    # Of an input without a schema Restate does not say whether it may be missing.
    required = {"required": ["input"]} if schema else {}
    schema.setdefault("description", "What the handler takes: any JSON value that it understands.")
    wrapped = {"type": "object", "properties": {"input": schema}, **required, "additionalProperties": False}
    return "value", wrapped | hoisted


def _with_key(schema: dict[str, Any], service: str) -> dict[str, Any]:
    """With the argument for the object's key."""
    key = {"type": "string", "minLength": 1, "description": f"Which {service}: the object's key."}
    required = schema.get("required")
    listed = required if isinstance(required, list) else []
    return schema | {"properties": {"key": key, **schema["properties"]}, "required": ["key", *listed]}


def _shared_handlers(service: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        one
        for one in service["handlers"]
        if isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and _is_shared(service, one)
        and one.get("public") is not False
        and _takes_json(one)
    ]


def _is_query(handler: dict[str, Any]) -> bool:
    """As its metadata says; else a handler with an output but no input is a query. Restate does not mark
    read-only handlers, so the others are signals, which are sent once and require the right to change."""
    if (said := _labels(handler).get(LABEL)) in ("query", "signal"):
        return bool(said == "query")
    return _arguments(handler)[0] == "nothing" and handler.get("output_description") != "none"


def _interaction(handler: dict[str, Any]) -> dict[str, Any]:
    description = handler.get("documentation")
    return {
        "name": handler["name"],
        "description": description if isinstance(description, str) else "",
        "inputSchema": _arguments(handler)[1],
    }


def type_of(workflow: WorkflowRef) -> str:
    return str(workflow.metadata.get("type") or SERVICE)


def start_request(
    workflow: WorkflowRef, arguments: dict[str, Any], key: UUID
) -> tuple[str, Any, dict[str, str]]:
    """Path, body and headers. A workflow's id is the key; other handlers have it as their idempotency key."""
    service, _, handler = workflow.id.partition("/")
    names, kind = {"service": service, "handler": handler}, type_of(workflow)
    rest = dict(arguments)
    headers = {} if kind == WORKFLOW else {"idempotency-key": str(key)}
    if kind == SERVICE:
        path = fill_path("/{service}/{handler}/send", **names)
    else:
        of = str(key) if kind == WORKFLOW else rest.pop("key", None)
        if not isinstance(of, str):
            raise Rejected(f"The argument key must be a string, the key of the {service}.")
        path = fill_path("/{service}/{of}/{handler}/send", of=of, **names)
    return path, body_of(workflow.metadata.get("takes"), rest), headers


def shared_request(workflow: WorkflowRef, key: str, name: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    """Path and body of a call to a shared handler of the workflow's run. Raises NotFound."""
    shared = workflow.metadata.get("shared")
    if not isinstance(shared, dict) or name not in shared:
        raise NotFound(f"{workflow.name} has no shared handler {name[:100]!r}.")
    service = workflow.id.partition("/")[0]
    path = fill_path("/{service}/{key}/{handler}", service=service, key=key, handler=name)
    return path, body_of(shared[name], arguments)


def body_of(takes: Any, arguments: dict[str, Any]) -> Any:
    """None: no body."""
    match takes:
        case "fields":
            return arguments
        case "value":
            return arguments.get("input")
    return None
