from celery import shared_task

from orchestration.pipeline import settle_requests
from orchestration.records import reap_overdue


@shared_task(name="orchestration.end_interrupted_requests")
def end_interrupted_requests() -> None:
    """One batch, including requests whose run has ended."""
    settle_requests()
    reap_overdue()
