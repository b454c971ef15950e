"""Celery's door to requests in words."""

from celery import shared_task

from orchestration.interrupting import end_interrupted, end_with_runs


@shared_task(name="orchestration.end_interrupted_requests")
def end_interrupted_requests() -> None:
    """Also those whose run has ended. What is more than a batch, the next one ends."""
    end_with_runs()
    end_interrupted()
