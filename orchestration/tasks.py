"""Celery's door to requests in words."""

from celery import shared_task

from orchestration.interrupting import end_interrupted


@shared_task(name="orchestration.end_interrupted_requests")
def end_interrupted_requests() -> None:
    """What is more than a batch, the next one ends."""
    end_interrupted()
