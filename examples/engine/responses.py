"""The JSON this API answers with."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from examples.engine.runs import JsonObject, Run


class Refusal(HTTPException):
    """A request that cannot be honoured: the HTTP status, why, and what else the client should see."""

    def __init__(self, status_code: int, error: str, **more: Any) -> None:
        super().__init__(status_code, error)
        self.more = more


def json_error(
    status_code: int, error: str, more: JsonObject | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse({"error": error, **(more or {})}, status_code, headers)


async def refused(request: Request, refusal: Exception) -> JSONResponse:
    """Answers every HTTPException, the framework's own (unknown path, wrong method) included."""
    assert isinstance(refusal, HTTPException)
    more = refusal.more if isinstance(refusal, Refusal) else None
    return json_error(refusal.status_code, refusal.detail, more, refusal.headers)


async def broken(request: Request, defect: Exception) -> JSONResponse:
    return json_error(500, "The engine failed to answer; its log says why.")


def status_of(run: Run) -> JsonObject:
    context = {"source": run.source, "idempotency_key": run.idempotency_key}
    status: JsonObject = {
        "create_time": run.create_time,
        "update_time": run.update_time,
        "start_time": run.start_time,
        "status": run.status,
        "workflow_id": run.workflow_id,
        "input": {**run.input, "context": context},
        "output": run.output,
        "progress": run.progress,
        "progress_message": run.progress_message,
        "error": run.error,
    }
    return status if run.end_time is None else {**status, "end_time": run.end_time}


def receipt_of(run: Run) -> JsonObject:
    """The answer to a start. Its `workflow_id` names the run; in a status it names the workflow."""
    return {"correlation_id": run.correlation_id, "workflow_id": run.run_id}
