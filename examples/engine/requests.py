"""Reads what clients send, and refuses what cannot be understood."""

import json
from typing import Any

from starlette.requests import Request

from examples.engine.listing import Wanted
from examples.engine.responses import Refusal
from examples.engine.runs import JsonObject, StartRequest
from examples.engine.workflows.definition import Workflow

BODY_LIMIT = 10 * 1024 * 1024
NESTING_LIMIT = 100
KEY_LIMIT = 255
RUN_FILTERS = ("idempotency_key", "workflow_id", "status")


async def read_start(request: Request, workflow: Workflow) -> StartRequest:
    body = parse_object(await read_body(request))
    given, source = body.get("input"), body.get("source")
    if not isinstance(given, dict):
        raise Refusal(400, "The body needs an 'input' that is an object.", details=[])
    if source is not None and not isinstance(source, str):
        raise Refusal(400, "The 'source' must be a string.", details=[])
    if problems := workflow.problems_with(given):
        raise Refusal(400, f"The input does not fit workflow {workflow.name}.", details=problems)
    return StartRequest(given, source, read_idempotency_key(request))


def read_idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key") or None
    if key is not None and len(key) > KEY_LIMIT:
        raise Refusal(400, f"The Idempotency-Key is longer than {KEY_LIMIT} characters.", details=[])
    return key


async def read_body(request: Request) -> bytes:
    """The whole body, or a 413 when it is over the limit."""
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        # Reading on for a while without keeping it lets most clients finish sending and see the refusal.
        if size > 10 * BODY_LIMIT:
            break
        if size <= BODY_LIMIT:
            body += chunk
    if size > BODY_LIMIT:
        raise Refusal(413, f"The body is over the limit of {BODY_LIMIT} bytes.")
    return bytes(body)


def parse_object(body: bytes) -> JsonObject:
    try:
        parsed: Any = json.loads(body)
        # Python reads NaN, 1e999 and lone surrogates, which no later answer could express as JSON.
        json.dumps(parsed, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"The body is not valid JSON: {error}", details=[]) from error
    if not isinstance(parsed, dict):
        raise Refusal(400, "The body must be a JSON object.", details=[])
    if is_deeper(parsed, NESTING_LIMIT):
        raise Refusal(400, f"The body is nested deeper than {NESTING_LIMIT} levels.", details=[])
    return parsed


def is_deeper(container: JsonObject | list[Any], levels: int) -> bool:
    """Returns True if containers are nested in more than so many levels, which could not be stored."""
    if levels == 0:
        return True
    members = container.values() if isinstance(container, dict) else container
    return any(is_deeper(member, levels - 1) for member in members if isinstance(member, dict | list))


def read_wanted(request: Request) -> Wanted:
    """The runs asked for by the filters and the page in the query string."""
    query = request.query_params
    filters = {name: query[name] for name in RUN_FILTERS if name in query}
    return Wanted(filters, read_count(request, "limit"), read_count(request, "offset") or 0)


def read_count(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise Refusal(400, f"The query parameter '{name}' must be a whole number of at least 0.")
    return int(text)
