from celery import shared_task

from orchestration.records import reap_overdue, settle_with_runs


@shared_task(name="orchestration.end_interrupted_requests")
def end_interrupted_requests() -> None:
    """One batch, including requests whose run has ended."""
    settle_with_runs()
    reap_overdue()
