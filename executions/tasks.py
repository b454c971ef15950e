"""Celery's door to executions."""

from typing import Any

from celery import shared_task
from celery.signals import worker_process_shutdown, worker_shutdown

from catalogue.product_settings import overrides
from connectors.background import run_in_background_loop
from executions import polling, result_cache, retention, statistics
from executions.dispatch import POLL_TASK
from executions.local_worker import RENEWAL_SECONDS, at_most_every, note_worker
from executions.queue import admit_queued

_note_worker = at_most_every(RENEWAL_SECONDS, note_worker)
PRUNING_SECONDS = 20.0
"""A thread of the worker is taken for as long, and its shutdown may have to wait for a batch."""


@shared_task(name=POLL_TASK)
def poll_due_executions() -> None:
    """One tick: begin whatever is due. A tick that is lost costs a second, nothing more."""
    overrides()  # What is begun here reads settings where it cannot wait for the database.
    polling.poll_due_executions()
    admit_queued()
    _note_worker()


@shared_task(name="executions.prune_executions")
def prune_executions() -> None:
    """What is left when the time is up, the next one removes."""
    retention.prune(seconds=PRUNING_SECONDS)


@shared_task(name="executions.clean_result_cache")
def clean_result_cache() -> None:
    """Asked often, since the interval may change while the schedule runs."""
    result_cache.clean_if_due()


@shared_task(name="executions.fold_statistics")
def fold_statistics() -> None:
    """Until it runs, readers add up more rows; the numbers are the same."""
    statistics.recount_once()
    statistics.fold()


@worker_process_shutdown.connect
@worker_shutdown.connect
def finish_what_is_under_way(**_: Any) -> None:
    """A worker that is stopped, as at every deployment, first hears the engines out."""
    run_in_background_loop(polling.finish_polling())
