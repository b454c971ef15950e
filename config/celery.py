"""Celery. The database records all work; messages only make it happen sooner."""

import os
from functools import cached_property
from typing import Any

from celery import Celery
from celery.signals import setup_logging
from kombu import Exchange, Queue

from config.broker import DEFAULT_QUEUE, SCHEME, embedded_broker_options, queue_name

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# Django's system checks load the admin and every URL, which doubles the time in which workers and beat start.
# `migrate` and CI run them; our commands do without them too.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")

UNUSED_QUEUE_SECONDS = 3600  # RabbitMQ then deletes a queue without workers; nothing depends on its messages

WITH_TASKS = ["catalogue", "executions", "orchestration"]
"""Named, since Celery would take every module `tasks` for one of its own: that of the MCP server too."""


class Application(Celery):
    @cached_property
    def Beat(self) -> Any:  # noqa: N802 - Celery's name
        """Sends tasks by name: without their modules, the models and all that these import."""
        from celery.apps.beat import Beat

        class Schedule(Beat):
            def init_loader(self) -> None:
                app.finalize()

        return self.subclass_with_self(Schedule, name="Beat", reverse="Beat")


app = Application("workflow_catalogue")


@setup_logging.connect
def _keep_our_logging(**_: Any) -> None:
    """Celery configures logging itself unless this signal has a receiver."""


def _configure() -> None:
    from django.conf import settings

    broker_url = settings.CELERY_BROKER_URL.get_secret_value()
    is_embedded = broker_url.startswith(f"{SCHEME}:")
    name = DEFAULT_QUEUE if is_embedded else queue_name(settings.SECRET_KEY)
    exchange = Exchange(name, auto_delete=True)
    queue = Queue(name, exchange, routing_key=name, expires=UNUSED_QUEUE_SECONDS)
    app.conf.update(
        broker_url=broker_url,
        broker_transport_options=embedded_broker_options(settings.DATA_DIR / "broker") if is_embedded else {},
        broker_connection_retry_on_startup=True,
        task_queues=[queue],
        task_default_queue=queue.name,
        task_ignore_result=True,
        task_acks_late=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        timezone="UTC",
        beat_schedule={
            # A tick that no worker took in time is dropped: the next one does the same work.
            "poll-due-executions": {
                "task": "executions.poll_due_executions",
                "schedule": 1.0,
                "options": {"expires": 5},
            },
            "refresh-due-sources": {
                "task": "catalogue.refresh_due_sources",
                "schedule": 5.0,
                "options": {"expires": 15},
            },
            "clean-result-cache": {
                "task": "executions.clean_result_cache",
                "schedule": 10.0,
                "options": {"expires": 10},
            },
            "end-interrupted-requests": {
                "task": "orchestration.end_interrupted_requests",
                "schedule": 10.0,
                "options": {"expires": 10},
            },
            "fold-statistics": {
                "task": "executions.fold_statistics",
                "schedule": 60.0,
                "options": {"expires": 60},
            },
            "prune-executions": {
                "task": "executions.prune_executions",
                "schedule": 600.0,
                "options": {"expires": 300},
            },
        },
        beat_schedule_filename=str(settings.DATA_DIR / "celerybeat-schedule"),
    )


_configure()
app.autodiscover_tasks(WITH_TASKS)
