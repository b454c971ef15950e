"""Celery's door to executions."""

from typing import Any

from celery import shared_task
from celery.signals import worker_process_shutdown, worker_shutdown

from connectors.background import run_in_background_loop
from executions import polling
from executions.advancing import finish_steps


@shared_task(name="executions.poll_due_executions")
def poll_due_executions() -> None:
    """One tick: begin whatever is due. A tick that is lost costs a second, nothing more."""
    polling.poll_due_executions()


@worker_process_shutdown.connect
@worker_shutdown.connect
def finish_what_is_under_way(**_: Any) -> None:
    """A worker that is stopped, as at every deployment, first hears the engines out."""
    run_in_background_loop(finish_steps())
