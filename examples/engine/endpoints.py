"""Handles the requests to each URL of the API."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from examples.engine.listing import stream_listing
from examples.engine.requests import read_count, read_start, read_wanted
from examples.engine.responses import Refusal, receipt_of, status_of
from examples.engine.runner import KeyTaken, Runner
from examples.engine.runs import Run
from examples.engine.store import Store
from examples.engine.workflows import WORKFLOWS
from examples.engine.workflows.definition import ExecutionType, Workflow


async def healthz(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def list_workflows(request: Request) -> Response:
    listed = [workflow.listed() for workflow in WORKFLOWS.values()]
    limit, offset = read_count(request, "limit"), read_count(request, "offset")
    if limit is None and offset is None:
        return JSONResponse(listed)
    start = offset or 0
    end = len(listed) if limit is None else start + limit
    following = f"{request.url.path}?limit={limit}&offset={end}" if limit and end < len(listed) else None
    return JSONResponse({"workflows": listed[start:end], "total": len(listed), "next": following})


class RunEndpoints:
    """The endpoints about runs, which need the runner and its records."""

    def __init__(self, store: Store, runner: Runner) -> None:
        self._store = store
        self._runner = runner

    async def start(self, request: Request) -> Response:
        workflow = wanted_workflow(request)
        asked = await read_start(request, workflow)
        try:
            run = self._runner.start(workflow, asked)
        except KeyTaken as taken:
            error = "This Idempotency-Key was used before, with another input."
            raise Refusal(409, error, run=receipt_of(taken.run)) from taken
        if workflow.execution_type is ExecutionType.ASYNC:
            return JSONResponse(receipt_of(run))
        ended = await self._runner.finished(run.run_id) or run
        return JSONResponse({**status_of(ended), **receipt_of(ended)})

    async def status(self, request: Request) -> Response:
        return JSONResponse(status_of(self._wanted_run(request)))

    async def cancel(self, request: Request) -> Response:
        run_id = self._wanted_run(request).run_id
        won = self._runner.cancel(run_id)
        run = self._wanted_run(request)
        if not won:
            error = f"The run has already ended ({run.status}), so it cannot be cancelled."
            raise Refusal(409, error, status=run.status, run=status_of(run))
        return JSONResponse(status_of(run))

    async def list_runs(self, request: Request) -> Response:
        pieces = stream_listing(self._store.database, read_wanted(request))
        return StreamingResponse(pieces, media_type="application/json")

    def _wanted_run(self, request: Request) -> Run:
        workflow = wanted_workflow(request)
        run = self._runner.find(request.path_params["run_id"])
        if run is None or run.workflow_id != workflow.id:
            raise Refusal(404, f"Workflow {workflow.id} has no run {request.path_params['run_id']}.")
        return run


def wanted_workflow(request: Request) -> Workflow:
    workflow_id = request.path_params["workflow_id"]
    if workflow := WORKFLOWS.get(workflow_id):
        return workflow
    raise Refusal(404, f"There is no workflow with the id {workflow_id}.")
