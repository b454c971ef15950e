"""Celery. The database records all work; messages only make it happen sooner."""

import atexit
import hashlib
import hmac
import os
import threading
import uuid
from collections import deque
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from queue import Empty
from time import time_ns
from typing import Any

from celery import Celery
from celery.signals import (
    beat_init,
    before_task_publish,
    setup_logging,
    task_prerun,
    task_revoked,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)
from kombu import Exchange, Queue
from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads
from loguru import logger

from telemetry import metrics, traces

SCHEME = "filesystem"
DEFAULT_QUEUE = "celery"
TICK, TICK_EXPIRES = "executions.poll_due_executions", 5  # Seconds
SCHEDULE = (
    (TICK, 1.0, TICK_EXPIRES),
    ("executions.correct_times", 10.0, 10),
    ("catalogue.refresh_due_sources", 5.0, 15),
    ("executions.tend_approvals", 5.0, 15),
    ("executions.send_approval_notices", 5.0, 15),
    ("executions.send_run_notices", 2.0, 10),
    ("executions.report_events", 30.0, 30),
    ("executions.clean_result_cache", 10.0, 10),
    ("orchestration.end_interrupted_requests", 10.0, 10),
    ("executions.fold_statistics", 60.0, 60),
    ("mcp_bridge.clean_up_authorizations", 3600.0, 300),
    ("audit.seal_audit", 30.0, 30),
    ("audit.prune_audit", 3600.0, 3600),
    # For 20 s at most, which is enough for some millions of runs a day: docs/sizing.md.
    ("executions.prune_executions", 60.0, 50),
)
"""Tasks, the seconds between their ticks, and those after which a tick that no worker took is dropped: the
next one does the same work."""
DROPPED_TICKS = 10  # In a row, before a worker says so
REDIS_LIMITS = ("socket_timeout", "socket_connect_timeout")
SILENT_SECONDS = 5.0  # For which Redis may not respond; workers wait 1 s at a time for a message


class Channel(filesystem.Channel):
    """A message is a file `<time>_<unique>.<queue>.msg`."""

    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]  # two stubs disagree
        file = Path(self.data_folder_out, f"{time_ns():020}_{uuid.uuid4().hex}.{queue}.msg")
        _write_whole(file, dumps(payload))

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        for name in sorted(os.listdir(self.data_folder_in)):
            if name.partition(".")[2] == f"{queue}.msg" and (text := _take(Path(self.data_folder_in, name))):
                return loads(text)
        raise Empty


class Transport(filesystem.Transport):
    Channel = Channel


def queue_name(secret_key: str) -> str:
    """Derived from the deployment's secret key, so that it can share a broker with other users of Celery."""
    digest = hmac.new(secret_key.encode(), b"workflow-catalogue queue", hashlib.sha256).hexdigest()
    return f"workflow-catalogue-{digest[:12]}"


def embedded_broker_options(folder: Path) -> dict[str, Any]:
    """Options for `filesystem://` below `folder`, which is prepared for it."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"
    messages, control = folder / "messages", folder / "control"
    for made in (messages, control):
        made.mkdir(parents=True, exist_ok=True)
    # kombu writes this file at the first use, when a concurrent reader could see half of it.
    exchange = control / f"{DEFAULT_QUEUE}.exchange"
    if not exchange.exists():
        _write_whole(exchange, dumps([[DEFAULT_QUEUE, "", DEFAULT_QUEUE]]))
    return {
        "data_folder_in": str(messages),
        "data_folder_out": str(messages),
        "control_folder": str(control),
        # Seconds between two polls of the folder; a stopping worker waits for one as well.
        "polling_interval": 0.2,
    }


def _write_whole(file: Path, text: str) -> None:
    fresh = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)


def _take(file: Path) -> str:
    """The text, for the one process that gets the file; empty for all others."""
    ours = file.with_name(f"{file.name}.taken")
    try:
        file.rename(ours)
    except FileNotFoundError:
        return ""
    text = ours.read_text(encoding="utf-8")
    ours.unlink()
    return text


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# Django's system checks load the admin and every URL, which doubles the time in which workers and beat start.
# `migrate` and CI run them; our commands do without them too.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")

UNUSED_QUEUE_SECONDS = 3600  # RabbitMQ then deletes a queue without workers; nothing depends on its messages

WITH_TASKS = ["audit", "catalogue", "executions", "orchestration", "identity.oauth"]
"""A list, because Celery would load every module called `tasks`, including the MCP server's."""


class Application(Celery):
    @cached_property
    def Beat(self) -> Any:  # noqa: N802 - Celery's name
        """Sends tasks by name, without importing their modules and models."""
        from config.beat import Schedule

        return self.subclass_with_self(Schedule, name="Beat", reverse="Beat")


app = Application("workflow_catalogue")


@setup_logging.connect
def _keep_our_logging(**_: Any) -> None:
    """Celery configures logging itself unless this signal has a receiver."""


_ended = threading.Event()


@worker_ready.connect
def _begin_heartbeat(**_: Any) -> None:
    """Uses a separate thread, because all others of the worker may be busy."""
    from connectors.registry import connector_kinds
    from executions.local_worker import show_life

    connector_kinds()  # As web processes look for packages at their start.
    threading.Thread(target=show_life, args=(_ended,), name="heartbeat", daemon=True).start()


@worker_ready.connect
@beat_init.connect
def _publish_metrics(**_: Any) -> None:
    from django.conf import settings

    publication = metrics.Publication(settings.DATA_DIR / "metrics", settings.PROCESS)
    publication.begin()
    atexit.register(publication.end)


@beat_init.connect
def _note_start(**_: Any) -> None:
    """Celery's own line is on the level of those for each tick."""
    logger.info("Beat has started: it sends {} tasks on schedule", len(app.conf.beat_schedule))


@worker_shutting_down.connect
def _end_long_work(**_: Any) -> None:
    """Celery waits for running tasks; the next worker does what they leave undone."""
    from connectors.background import process_ends

    process_ends.set()


@worker_shutdown.connect
def _end_telemetry(**_: Any) -> None:
    _ended.set()
    traces.finish_spans()


_late_ticks: deque[float] = deque(maxlen=DROPPED_TICKS)  # By how many seconds those since the last good one


@task_revoked.connect
def _note_dropped(sender: Any, request: Any, expired: bool = False, **_: Any) -> None:
    if expired and sender.name == TICK:
        late = (datetime.now(UTC) - datetime.fromisoformat(request.expires)).total_seconds() + TICK_EXPIRES
        _late_ticks.append(late)
        # Of those that gathered while there was no worker, each is less late than the one before.
        if len(_late_ticks) == DROPPED_TICKS and late > _late_ticks[0] - 1:
            logger.bind(recurring="Celery drops expired ticks without a word").warning(
                "This worker drops all ticks of beat: by its clock, they arrive {:.0f} s after they were "
                "sent. Compare the clocks of beat's machine and this one. If they agree, start more workers.",
                late,
            )


@before_task_publish.connect
def _pass_request_on(headers: dict[str, Any] | None = None, **_: Any) -> None:
    if headers is not None and (identity := traces.request_id.get()):
        headers["request_id"], headers["traceparent"] = identity, traces.current_traceparent()


@task_prerun.connect
def _take_request_over(task: Any, **_: Any) -> None:
    """Set for each task, because the thread has run others before."""
    if task.name == TICK:
        _late_ticks.clear()
    sent = task.request
    traces.continue_request(
        identity=getattr(sent, "request_id", None), traceparent=getattr(sent, "traceparent", None)
    )


def broker_options(url: str, folder: Path) -> dict[str, Any]:
    if url.startswith(f"{SCHEME}:"):
        return embedded_broker_options(folder)
    # A server that hangs, or a network that loses packets, would hold the thread of a call or probe forever.
    return dict.fromkeys(REDIS_LIMITS, SILENT_SECONDS) if url.startswith(("redis:", "rediss:")) else {}


def _configure() -> None:
    from django.conf import settings

    broker_url = settings.CELERY_BROKER_URL.get_secret_value()
    is_embedded = broker_url.startswith(f"{SCHEME}:")
    name = DEFAULT_QUEUE if is_embedded else queue_name(settings.SECRET_KEY)
    exchange = Exchange(name, auto_delete=True)
    queue = Queue(name, exchange, routing_key=name, expires=UNUSED_QUEUE_SECONDS)
    app.conf.update(
        broker_url=broker_url,
        broker_transport_options=broker_options(broker_url, settings.DATA_DIR / "broker"),
        broker_connection_retry_on_startup=True,
        # Celery gives up after 100 attempts, some 45 minutes, and the worker ends.
        broker_connection_max_retries=None,
        task_queues=[queue],
        task_default_queue=queue.name,
        task_ignore_result=True,
        task_acks_late=False,
        # Affects late acknowledgement only; otherwise each lost connection logs a page about a future Celery.
        worker_cancel_long_running_tasks_on_connection_loss=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        timezone="UTC",
        beat_schedule={
            task.rpartition(".")[2].replace("_", "-"): {
                "task": task,
                "schedule": seconds,
                "options": {"expires": expires},
            }
            for task, seconds, expires in SCHEDULE
        },
        beat_scheduler="config.beat:Scheduler",
        beat_schedule_filename=str(settings.DATA_DIR / "celerybeat-schedule"),
    )


_configure()
app.autodiscover_tasks(WITH_TASKS)
