"""Defines the functions that the workers of the tests run."""

import time

from rq import get_current_job


def count_words(text: str) -> dict[str, int]:
    return {"words": len(text.split())}


def brew(tea: str) -> None:
    raise RuntimeError(f"The {tea} went cold.")


def keep_watch(seconds: float) -> str:
    job = get_current_job()
    assert job is not None
    job.meta |= {"progress": 25, "progress_message": "watching"}
    job.save_meta()
    # `over:...` is set by RqEngine.stop_everything.
    until = time.monotonic() + seconds
    while time.monotonic() < until and not job.connection.exists(f"over:{job.id}"):
        time.sleep(0.05)
    return "all quiet"
