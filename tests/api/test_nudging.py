"""A worker is told at once, and a broker that is down costs nothing but a second."""

from collections.abc import Callable
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone
from loguru import logger

from config.celery import app
from tests.api.clients import agent
from tests.factories import make_execution, make_source, make_workflow

EMBEDDED = settings.CELERY_BROKER_URL.get_secret_value().startswith("filesystem:")
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def warned():
    """Set by the first warning that names the broker."""
    event = Event()
    sink = logger.add(lambda message: event.set() if "broker" in message else None, level="WARNING")
    yield event
    logger.remove(sink)


def task_sent_by(act: Callable[[], Any]) -> str:
    with app.connection_for_read() as broker:
        # These tests' own, since it is named after their secret key.
        queue = broker.SimpleQueue(app.amqp.queues[app.conf.task_default_queue])
        queue.clear()
        act()
        message = queue.get(timeout=10)
        message.ack()
        queue.close()
    return str(message.headers["task"])


def test_a_start_leaves_a_message_for_a_worker():
    make_workflow(tool_name="greet")
    task = task_sent_by(lambda: agent().post("/api/executions/", {"tool": "greet"}))
    assert task == "executions.poll_due_executions"


def test_a_report_of_an_end_leaves_one_too():
    """B7: of an engine's webhook, for a run that no request waits for."""
    secret = "webhook-secret-0123456789"
    source = make_source("awx", kind="http_job", config={"preset": "awx"})
    source.credentials = {"webhook_secret": secret}
    source.save()
    planned = timezone.now() + timedelta(hours=1)
    run = make_execution(make_workflow(source), state="running", run_id="42", deadline_at=planned)
    type(run).objects.update(next_attempt_at=planned)
    delivered = []

    def deliver() -> None:
        body, headers = {"id": 42, "finished": "2026-11-24T12:00:00Z"}, {"X-Webhook-Secret": secret}
        delivered.append(Client().post("/hooks/awx", body, "application/json", headers=headers))

    assert task_sent_by(deliver) == "executions.poll_due_executions"
    assert delivered[0].status_code == 202


@pytest.mark.skipif(not EMBEDDED, reason="only the embedded broker can be taken away from these tests alone")
def test_a_start_succeeds_when_the_broker_is_down(warned):
    make_workflow(tool_name="greet")
    messages = settings.DATA_DIR / "broker" / "messages"
    aside = messages.rename(messages.with_name("aside"))
    try:
        response = agent().post("/api/executions/", {"tool": "greet"})

        assert response.status_code == 202
        assert warned.wait(10)
    finally:
        aside.rename(messages)
