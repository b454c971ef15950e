"""The embedded broker under several processes at once."""

import logging
import os
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery.concurrency.solo import TaskPool
from celery.signals import task_prerun
from celery.worker.consumer import Consumer
from celery.worker.request import Request
from kombu import Connection
from loguru import logger

from config.beat import Scheduler
from config.celery import TICK, TICK_EXPIRES, app, embedded_broker_options
from tests.logs import shown_lines
from tests.processes import run_python

WRITERS, READERS, EACH = 3, 3, 150
BROKER = os.environ.get("CELERY_BROKER_URL", "")


@pytest.fixture
def connection(tmp_path: Path):
    with Connection(
        "filesystem://", transport_options=embedded_broker_options(tmp_path / "broker")
    ) as opened:
        yield opened


def connected_like(connection: Connection) -> Connection:
    return Connection("filesystem://", transport_options=connection.transport_options)


def test_every_message_is_taken_once_and_whole_while_others_are_written(connection, tmp_path):
    """A worker that reads half a message would die of it."""
    all_written = Event()

    def write(writer: int) -> None:
        with connected_like(connection) as own:
            for number in range(EACH):
                own.default_channel._put("work", {"id": [writer, number], "text": "x" * 4_000})

    def read(_: int) -> list[Any]:
        taken: list[Any] = []
        with connected_like(connection) as own:
            while True:
                last_look = all_written.is_set()
                try:
                    taken.append(tuple(own.default_channel._get("work")["id"]))
                except Empty:
                    if last_look:
                        return taken

    with ThreadPoolExecutor(WRITERS + READERS) as threads:
        reading = [threads.submit(read, reader) for reader in range(READERS)]
        list(threads.map(write, range(WRITERS)))
        all_written.set()
        counts = Counter(message for reader in reading for message in reader.result())
    assert counts == {(writer, number): 1 for writer in range(WRITERS) for number in range(EACH)}
    assert list((tmp_path / "broker" / "messages").iterdir()) == []


def test_messages_come_in_the_order_in_which_they_were_put(connection):
    channel = connection.default_channel
    for number in range(20):
        channel._put("work", number)
    assert [channel._get("work") for _ in range(20)] == list(range(20))


def test_queues_do_not_see_each_others_messages(connection):
    connection.default_channel._put("one", 1)
    with pytest.raises(Empty):
        connection.default_channel._get("other")


def test_a_message_published_before_any_worker_was_there_is_kept(connection):
    """The queue is known from the first start on."""
    connection.Producer().publish({"a": 1}, exchange="celery", routing_key="celery", serializer="json")
    assert connection.default_channel._get("celery")["body"]


def test_a_worker_that_loses_its_broker_says_only_that(caplog):
    """Warnings are errors here, and lines of the log in a process."""
    worker = SimpleNamespace(use_eventloop=False)
    consumer = Consumer(print, app=app, pool=TaskPool(1), initial_prefetch_count=1, controller=worker)
    consumer.on_connection_error_after_connected(ConnectionResetError())
    (line,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert "Connection to broker lost" in line


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("start", "loaded"),
    [("app.loader.init_worker()", "executions.tasks"), ("app.Beat().init_loader()", "celery.apps.beat")],
    ids=["worker", "beat"],
)
def test_workers_and_beat_start_without_what_only_others_need(start, loaded):
    """Loading it took longer than all the rest of a start."""
    needless = ["config.urls", "mcp", "mcp_bridge.tasks", "catalogue.imports.temporal"]
    if "Beat" in start:
        needless += ["executions.models", "executions.tasks"]
    program = f"import sys; from config.celery import app; {start}; "
    program += f"print({loaded!r} in sys.modules, *(set({needless}) & sys.modules.keys()))"
    assert run_python(["-c", program]).stdout.split() == ["True"]


def test_beat_goes_on_at_once_after_its_clock_was_set_back(tmp_path, monkeypatch):
    """It sent nothing until the time of its last ticks was reached again, also after a restart."""
    right, offset, sent = app.now, timedelta(days=1), []
    monkeypatch.setattr(app, "now", lambda: right() + offset)
    monkeypatch.setattr(app, "send_task", lambda name, *_, **__: sent.append(name))
    made = Scheduler(app=app, schedule_filename=str(tmp_path / "schedule"))

    def tick() -> int:
        sent.clear()
        for _ in range(2 * len(scheduler.schedule)):
            scheduler.tick()
        return sent.count("executions.poll_due_executions")

    with closing(made) as scheduler, closing(scheduler.connection):
        tick()
        offset += timedelta(seconds=5)
        assert tick() == 1
        offset = timedelta()
        assert tick() == 0
        offset += timedelta(seconds=5)
        assert tick() == 1


def test_beat_says_that_the_clock_went_forward(tmp_path, monkeypatch):
    """All runs timed out together, and no line of any log had to do with the clock."""
    right, offset, lines = app.now, timedelta(), []
    monkeypatch.setattr(app, "now", lambda: right() + offset)
    monkeypatch.setattr(app, "send_task", lambda *_, **__: None)
    made = Scheduler(app=app, schedule_filename=str(tmp_path / "schedule"))
    handler = logger.add(lambda line: lines.append(line.record["message"]), level="WARNING")
    try:
        with closing(made) as scheduler, closing(scheduler.connection):
            for seconds in (0, 5, 3600, 3601, 3600):
                offset = timedelta(seconds=seconds)
                scheduler.tick()
    finally:
        logger.remove(handler)
    (line,) = [line for line in lines if "forward" in line]
    assert line.startswith("The clock went forward by 3595 s at once")


ENDED_WITHIN_A_MESSAGE = """
import os, signal, sys
from amqp.transport import _AbstractTransport

from config.celery import app

write, written = _AbstractTransport.write, []

def write_half(transport, data):
    written.extend([data] if len(data) > 200 else [])
    if len(data) > 200 and len(written) == 3:
        transport.sock.sendall(data[:9])
        os.kill(os.getpid(), signal.SIGTERM)
        data = data[9:]
    write(transport, data)

_AbstractTransport.write = write_half
app.start(["--quiet", "beat", "--pidfile="])
"""


@pytest.mark.e2e
@pytest.mark.skipif(not BROKER.startswith("amqp"), reason="messages to RabbitMQ are sent under a lock")
def test_beat_ends_when_it_is_told_to_in_the_middle_of_a_message(tmp_path):
    """It waited for ever for the lock that it held itself, and an upgrade for it."""
    environment = os.environ | {"CATALOGUE_DATA_DIR": str(tmp_path)}
    outcome = run_python(["-c", ENDED_WITHIN_A_MESSAGE], environment=environment)
    assert outcome.returncode == 0, outcome.stderr


def receive_tick(*, late: float) -> None:
    """As a worker does, which got it so many seconds after it was sent."""
    sent_at, task = datetime.now(UTC) - timedelta(seconds=late), app.tasks[TICK]
    sent = app.amqp.as_task_v2(str(uuid.uuid4()), TICK, now=sent_at, expires=TICK_EXPIRES)
    message = Mock(headers=sent.headers, properties=sent.properties, delivery_info={}, body=sent.body)
    received = Request(message, app=app, task=task, headers=sent.headers, body=sent.body, decoded=True)
    if not received.revoked():
        task_prerun.send(sender=task, task_id=received.id, task=task)


def test_a_worker_says_that_it_drops_all_ticks_because_clocks_differ():
    """It did so without a word, and runs that no request waits for did not go on."""
    app.loader.import_default_modules()

    def drops(*lateness: float) -> int:
        with shown_lines() as lines:
            for late in lateness:
                receive_tick(late=late)
        return sum("they arrive 7 s after they were sent. Compare the clocks" in line for line in lines)

    assert drops(0) == 0
    assert drops(*[7] * 9) == 0
    assert drops(*[7] * 20) == 1
    assert drops(*[7] * 300) == 1, "and not each second"
    assert drops(0, *[7] * 9) == 0, "a tick that is processed begins it anew"
    assert drops(0, *range(3600, 7, -60)) == 0, "what had gathered while there was no worker"
