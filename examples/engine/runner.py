"""Starts, executes, resumes and cancels runs."""

import asyncio
import inspect
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from examples.engine.progress import Progress, Report
from examples.engine.runs import JsonObject, Outcome, Run, RunStatus, StartRequest
from examples.engine.store import Store
from examples.engine.workflows import WORKFLOWS
from examples.engine.workflows.definition import ExecutionType, Workflow, WorkflowError

logger = logging.getLogger(__name__)

THREADS = 4


class KeyTaken(Exception):
    """The idempotency key already belongs to a run that was given another input."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.run_id)
        self.run = run


@dataclass(frozen=True, slots=True)
class LiveRun:
    task: asyncio.Task[None]
    progress: Progress


class Runner:
    """Keeps one asyncio task per unfinished run; every method is to be called on the event loop."""

    def __init__(self, store: Store, honours_keys: bool) -> None:
        self._store = store
        self._honours_keys = honours_keys
        self._live: dict[str, LiveRun] = {}
        # Separate threads per kind: a queue of long jobs must not hold up an answer someone waits for.
        self._threads = {kind: ThreadPoolExecutor(THREADS, f"{kind}-workflow") for kind in ExecutionType}

    def start(self, workflow: Workflow, request: StartRequest) -> Run:
        """A new run that is recorded and under way, or the run the request's key already stands for."""
        binding = self._honours_keys and request.idempotency_key is not None
        run, is_new = self._store.start(workflow.id, request, binding)
        if is_new:
            self._launch(workflow, run)
        elif _canonical(run.input) != _canonical(request.input):
            raise KeyTaken(run)
        return run

    async def finished(self, run_id: str) -> Run | None:
        """The run once it no longer runs."""
        if live := self._live.get(run_id):
            await asyncio.wait([live.task])
        return self.find(run_id)

    def find(self, run_id: str) -> Run | None:
        """The run, with its live progress while it has any."""
        run = self._store.find(run_id)
        live = self._live.get(run_id)
        if run is None or live is None or run.status is not RunStatus.RUNNING:
            return run
        report = live.progress.latest()
        return replace(run, progress=report.percent, progress_message=report.message, update_time=report.at)

    def cancel(self, run_id: str) -> bool:
        """Cancel a run; False when it had finished before."""
        live = self._live.get(run_id)
        report = live.progress.latest() if live else Report(None, None, 0)
        won = self._store.finish(run_id, Outcome(RunStatus.CANCELLED), report)
        if won and live:
            self._stop(live)
        return won

    def resume(self) -> None:
        """Take up every run that an earlier process left unfinished."""
        unfinished = self._store.unfinished()
        for run in unfinished:
            if workflow := WORKFLOWS.get(run.workflow_id):
                self._launch(workflow, run)
            else:
                gone = Outcome(
                    RunStatus.FAILED, error=f"This engine no longer has workflow {run.workflow_id}."
                )
                self._store.finish(run.run_id, gone, Report(None, None, 0))
        if unfinished:
            logger.info("Resumed %d unfinished runs", len(unfinished))

    async def close(self) -> None:
        """Stop working without touching the records: what is unfinished is for the next process to resume."""
        live_runs = list(self._live.values())
        for live in live_runs:
            self._stop(live)
        await asyncio.gather(*(live.task for live in live_runs), return_exceptions=True)
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def _launch(self, workflow: Workflow, run: Run) -> None:
        progress = Progress(run.start_time)
        task = asyncio.get_running_loop().create_task(self._execute(workflow, run, progress))
        self._live[run.run_id] = LiveRun(task, progress)
        task.add_done_callback(lambda _: self._live.pop(run.run_id, None))

    def _stop(self, live: LiveRun) -> None:
        live.progress.stop()
        live.task.cancel()

    async def _execute(self, workflow: Workflow, run: Run, progress: Progress) -> None:
        outcome = await self._outcome(workflow, run, progress)
        report = progress.latest()
        if outcome.status is RunStatus.COMPLETED:
            report = replace(report, percent=100)
        self._store.finish(run.run_id, outcome, report)

    async def _outcome(self, workflow: Workflow, run: Run, progress: Progress) -> Outcome:
        try:
            return Outcome(RunStatus.COMPLETED, output=await self._compute(workflow, run.input, progress))
        except WorkflowError as failure:
            return Outcome(RunStatus.FAILED, error=str(failure))
        except Exception as defect:
            logger.exception("Workflow %s broke in run %s", workflow.name, run.run_id)
            return Outcome(RunStatus.FAILED, error=f"The workflow broke: {type(defect).__name__}: {defect}")

    async def _compute(self, workflow: Workflow, given: JsonObject, progress: Progress) -> JsonObject:
        if inspect.iscoroutinefunction(workflow.execute):
            waiting: JsonObject = await workflow.execute(given, progress)
            return waiting
        threads = self._threads[workflow.execution_type]
        loop = asyncio.get_running_loop()
        computed: JsonObject = await loop.run_in_executor(threads, workflow.execute, given, progress)
        return computed


def _canonical(given: JsonObject) -> str:
    return json.dumps(given, sort_keys=True)
