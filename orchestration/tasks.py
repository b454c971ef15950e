"""Celery's door to natural-language requests."""

from celery import shared_task

from orchestration.records import reap_overdue, settle_with_runs


@shared_task(name="orchestration.end_interrupted_requests")
def end_interrupted_requests() -> None:
    """Also those whose run has ended. What is more than a batch, the next one ends."""
    settle_with_runs()
    reap_overdue()
