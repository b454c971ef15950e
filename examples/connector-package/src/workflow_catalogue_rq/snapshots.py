"""Reads a job of RQ as a snapshot of a run."""

from typing import Any

from rq.job import Job, JobStatus

from connectors.protocol import RunSnapshot, RunState

STATES = {
    JobStatus.FINISHED: RunState.COMPLETED,
    JobStatus.FAILED: RunState.FAILED,
    JobStatus.STOPPED: RunState.CANCELLED,
    JobStatus.CANCELED: RunState.CANCELLED,
}
"""All others are about to run, or run."""
ENDED = frozenset(STATES)


def read_snapshot(job: Job) -> RunSnapshot:
    """The job as it was fetched, and its result where there is one."""
    status = job.get_status(refresh=False)
    state = STATES.get(status, RunState.RUNNING)
    result = job.latest_result() if status in ENDED else None
    traceback = (result.exc_string if result else "") or ""
    return RunSnapshot(
        state=state,
        output=result.return_value if result else None,
        error=_reason(state, traceback),
        progress=_number(job.meta.get("progress")),
        progress_message=str(job.meta.get("progress_message") or ""),
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.ended_at,
        raw={"status": str(status.value), "worker": job.worker_name or "", "traceback": traceback[-4000:]},
    )


def _reason(state: RunState, traceback: str) -> str:
    if state is RunState.FAILED:
        # The last line of a traceback is the exception with its message.
        return traceback.strip().rpartition("\n")[2] or "The job failed and RQ kept no reason."
    return "The job was stopped." if state is RunState.CANCELLED else ""


def _number(progress: Any) -> float | None:
    usable = isinstance(progress, int | float) and not isinstance(progress, bool)
    return min(max(float(progress), 0.0), 100.0) if usable else None
