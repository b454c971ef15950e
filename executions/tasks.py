from typing import Any

from celery import shared_task
from celery.signals import worker_process_shutdown, worker_shutdown

from catalogue import discovery
from catalogue.database import run_without_connection
from catalogue.product_settings import overrides
from executions import (
    advancing,
    approval_notices,
    approvals,
    result_cache,
    retention,
    run_notices,
    statistics,
    subscriptions,
)
from executions.local_worker import RENEWAL_SECONDS, at_most_every, note_worker
from executions.models import StatisticsState
from executions.queue import admit_queued
from executions.runner import lease
from executions.wakeups import POLL_TASK

_note_worker = at_most_every(RENEWAL_SECONDS, note_worker)
# Seldom: workers whose clocks differ would list sources in turn.
_correct_sources = at_most_every(300.0, discovery.correct_times)


@shared_task(name=POLL_TASK)
def poll_due_executions() -> None:
    overrides()  # The steps begun here read settings where they cannot query the database.
    advancing.poll_due_executions()
    admit_queued()
    _note_worker()


@shared_task(name="executions.correct_times")
def correct_times() -> None:
    """Repairs times after a clock that was ahead has been set back."""
    lease.correct_times()
    _correct_sources()


@shared_task(name="executions.prune_executions")
def prune_executions() -> None:
    retention.prune(seconds=20.0)  # It occupies a thread of the worker.


@shared_task(name="executions.tend_approvals")
def tend_approvals() -> None:
    approvals.end_expired()
    approvals.end_outdated()


@shared_task(name="executions.send_approval_notices")
def send_approval_notices() -> None:
    approval_notices.send_due(seconds=20.0)


@shared_task(name="executions.send_run_notices")
def send_run_notices() -> None:
    run_notices.send_due(seconds=20.0)


@shared_task(name="executions.report_events")
def report_events() -> None:
    subscriptions.report_events(seconds=20.0)


@shared_task(name="executions.clean_result_cache")
def clean_result_cache() -> None:
    """Runs often, since the interval may change at any time."""
    result_cache.clean_if_due()


@shared_task(name="executions.fold_statistics")
def fold_statistics() -> None:
    # After an upgrade, what ended before there were statistics.
    if not StatisticsState.objects.filter(counted_from_rows_at__isnull=False).exists():
        statistics.recount()
    statistics.fold()


@worker_process_shutdown.connect
@worker_shutdown.connect
def finish_steps_of_worker(**_: Any) -> None:
    run_without_connection(advancing.finish_polling())
