"""Celery: the muscle. What has to be done stands in the database; messages only make it happen sooner."""

import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging

from config.broker import DEFAULT_QUEUE, SCHEME, embedded_broker_options

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("workflow_catalogue")


@setup_logging.connect
def _keep_our_logging(**_: Any) -> None:
    """Celery sets up its own logging unless somebody answers this signal."""


def _broker_options(url: str) -> dict[str, Any]:
    from django.conf import settings

    return embedded_broker_options(settings.DATA_DIR / "broker") if url.startswith(f"{SCHEME}:") else {}


def _configure() -> None:
    from django.conf import settings

    app.conf.update(
        broker_url=settings.CELERY_BROKER_URL,
        broker_transport_options=_broker_options(settings.CELERY_BROKER_URL),
        broker_connection_retry_on_startup=True,
        task_default_queue=DEFAULT_QUEUE,
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
        },
        beat_schedule_filename=str(settings.DATA_DIR / "celerybeat-schedule"),
    )


_configure()
app.autodiscover_tasks()
