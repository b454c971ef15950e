"""Questions to the client: about a call that waits for approval, and those of a run to its caller.

The question about an approval is the address of its page, where a signed-in person decides: an answer from a
client, whose program may give it without asking anybody, approves nothing.

In 2026-07-28 the question is the answer to the call, and the client repeats the call with its user's
response; or the task contains it, and `tasks/update` brings the response.

With a handshake it is a request from this server while the call waits. Over HTTP it is sent on the call's own
stream, and its id names the execution, so that any process can take the response, even after the caller has
its handle.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
from mcp import MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY, URL_ELICITATION_REQUIRED, ElicitResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from access.callers import Caller, Scope
from catalogue.database import run_in_database
from connectors.errors import ConnectorError
from connectors.formats.json import with_escapes
from executions.approvals import describe_wait, page_of
from executions.interacting import cancel_execution
from executions.models import Execution
from executions.reading import UnknownExecution, find_execution
from executions.run_callers import Requests, answer, open_question
from identity.tokens import Access
from mcp_bridge.request_meta import EXECUTION_ID

APPROVAL = "approval"  # The key of the question, and the prefix of our request ids
ROUND = "."  # In the state, before the number of the question: each round has its own state
INPUT = "input"  # The prefix of the ids of a run's requests
ELICIT = "elicitation/create"
READ_BY_PEOPLE = frozenset({"message", "title", "description"})
UNKNOWN_STATE = "Unknown requestState: send the requestState of the response that asked for input, unchanged."
CANCELLED: dict[str, Any] = {"action": "cancel"}
Question = dict[str, Any]  # The params of a request to the client
Ask = Callable[[str, str, Question], Awaitable[dict[str, Any] | None]]
"""Sends a request: id, method, params. Over stdio it returns the result, or `{"error": ...}`; over HTTP that
is another message."""
_asked: defaultdict[str, list[anyio.CancelScope]] = defaultdict(list)  # Waits of this process, by request id


def question_about(execution: Execution, modes: frozenset[str]) -> Question | None:
    """The page where people decide; None if the client cannot show it."""
    if "url" not in modes:
        return None
    message = f"{execution.tool_name} has not been started. {describe_wait(execution)}"
    url = page_of(execution.approval)
    return {"mode": "url", "message": message, "url": url, "elicitationId": str(execution.pk)}


def input_required(execution: Execution, requests: Requests) -> dict[str, Any]:
    return {
        "resultType": "input_required",
        "inputRequests": requests,
        "requestState": f"{execution.pk}{ROUND}{execution.input_request or 0}",
        "_meta": {EXECUTION_ID: str(execution.pk)},
    }


async def ask_while_waiting(
    execution: Execution,
    question: Question,
    access: Access,
    *,
    ask: Ask,
    wait: Callable[[], Awaitable[Execution]],
) -> None:
    """Ends with `wait`, or once the user dismisses the question."""
    request_id, request = f"{APPROVAL}:{execution.pk}", {"method": ELICIT, "params": question}
    take = partial(_take, request_id, execution, access)
    async with anyio.create_task_group() as tasks:
        _asked[request_id].append(tasks.cancel_scope)
        try:
            tasks.start_soon(_ask, ask, request_id, request, take)
            await wait()
            tasks.cancel_scope.cancel()
        finally:
            _asked[request_id].remove(tasks.cancel_scope)
            if not _asked[request_id]:
                del _asked[request_id]


def requests_of(execution: Execution, modes: frozenset[str], *, approval: bool = True) -> Requests:
    """The question about an approval, if the client can show it; else those of the run, which has asked
    during its start only what the client can answer."""
    if approval and execution.is_unapproved and (question := question_about(execution, modes)) is not None:
        return {APPROVAL: {"method": ELICIT, "params": question}}
    requests = questions_of(execution)
    if not execution.is_paused:
        return requests
    return {key: one for key, one in requests.items() if one["params"].get("mode", "form") in modes}


def questions_of(execution: Execution) -> Requests:
    """The questions of the run, in the name of its source, which the client does not know."""
    return in_name_of(execution.source_name, open_question(execution), asked_by=execution.pk)


def in_name_of(source: str, requests: Requests, *, asked_by: object) -> Requests:
    for request in requests.values():
        if request["method"] == ELICIT:
            request["params"] = _with_escapes(request["params"])
            request["params"]["message"] = f"{source} asks: {request['params'].get('message', '')}"
            if request["params"].get("mode") == "url":
                # Stateless servers give none, and clients with a handshake require one.
                request["params"].setdefault("elicitationId", str(asked_by))
    return requests


def error_for_client(
    error: Exception | None, words: str, source: str, *, answers: Mapping[str, Any], version: str
) -> MCPError | None:
    """A server's error whose code tells the client what to do; None if it has none for this client."""
    details = error.details if isinstance(error, ConnectorError) else {}
    is_modern, required = version in MODERN_PROTOCOL_VERSIONS, details.get("required", {})
    if is_modern and (missing := {name: required[name] for name in required if name not in answers}):
        return MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, words, data={"requiredCapabilities": missing})
    # Versions without a handshake have no such code.
    if is_modern or "url" not in answers.get("elicitation", {}) or "elicitations" not in details:
        return None
    pages = {str(n): {"method": ELICIT, "params": page} for n, page in enumerate(details["elicitations"])}
    asked = [page["params"] for page in in_name_of(source, pages, asked_by="").values()]
    return MCPError(URL_ELICITATION_REQUIRED, words, data={"elicitations": asked})


def _with_escapes(asked: Any) -> Any:
    """Escapes invisible characters, and those that turn the text around them, where people read a server's
    question; what the answer repeats stays."""
    if isinstance(asked, list):
        return [_with_escapes(one) for one in asked]
    if not isinstance(asked, dict):
        return asked
    return {
        name: with_escapes(inner)
        if name in READ_BY_PEOPLE and isinstance(inner, str)
        else _with_escapes(inner)
        for name, inner in asked.items()
    }


async def ask_for_run(
    execution: Execution, requests: Requests, *, ask: Ask, wait: Callable[[], Awaitable[Execution]]
) -> Execution:
    """Ends with `wait`; later answers are still taken."""
    async with anyio.create_task_group() as tasks:
        for key, request in requests.items():
            request_id = f"{INPUT}:{execution.pk}:{execution.input_request}:{key}"
            tasks.start_soon(_ask, ask, request_id, request, partial(_take_input, execution, key))
        execution = await wait()
        tasks.cancel_scope.cancel()
    return execution


async def _ask(
    ask: Ask, request_id: str, request: dict[str, Any], take: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    if (result := await ask(request_id, request["method"], request["params"])) is not None:
        await take(result)


def is_answer(message: dict[str, Any]) -> bool:
    """Returns whether it answers a question of this server."""
    return "method" not in message and str(message.get("id", "")).startswith((f"{APPROVAL}:", f"{INPUT}:"))


async def take_answer(message: dict[str, Any], access: Access) -> None:
    """An answer in a separate message. Ignored for other callers' calls, or if no longer wanted."""
    if not access.allows(Scope.RUN):
        return
    kind, execution_id, *rest = message["id"].split(":", 3)
    try:
        execution = await run_in_database(find_execution, execution_id, caller=_alone(access))
    except UnknownExecution:
        return
    result = message.get("result")
    if kind == APPROVAL:
        await _take(message["id"], execution, access, result if isinstance(result, dict) else CANCELLED)
    elif len(rest) == 2 and rest[0] == str(execution.input_request):
        error = {"error": message.get("error")}
        await _take_input(execution, rest[1], result if isinstance(result, dict) else error)


async def take_task_responses(task_id: str, responses: Mapping[str, Any], access: Access) -> None:
    """The answers in `tasks/update`. Ignored for other callers' calls, or if they answer no question."""
    with suppress(UnknownExecution):
        execution = await run_in_database(find_execution, task_id, caller=_alone(access))
        await take_response(execution, _read_response(responses.get(APPROVAL)), access)
        if execution.is_asking:
            results = {key: result for key, result in responses.items() if isinstance(result, dict)}
            await run_in_database(answer, execution, results)


def _alone(access: Access) -> Caller:
    """An administrator may not answer for another caller."""
    return replace(access.caller, sees_everything=False)


def _read_response(said: Any) -> ElicitResult | None:
    try:
        return ElicitResult.model_validate(said)
    except ValidationError:
        return None


async def _take_input(execution: Execution, key: str, result: dict[str, Any]) -> None:
    await run_in_database(answer, execution, {key: result})


async def _take(request_id: str, execution: Execution, access: Access, result: dict[str, Any]) -> None:
    if (response := _read_response(CANCELLED if "error" in result else result)) is None:
        return
    await take_response(execution, response, access)
    if response.action == "cancel":
        for scope in _asked.get(request_id, []):
            scope.cancel()


async def take_response(execution: Execution, response: Any, access: Access) -> None:
    """Cancels the call if its user declines."""
    if isinstance(response, ElicitResult) and execution.is_unapproved and response.action == "decline":
        await cancel_execution(str(execution.pk), caller=access.caller)
