"""A worker is told at once, and a broker that is down costs nothing but a second."""

from threading import Event

import pytest
from django.conf import settings
from loguru import logger

from config.celery import app
from tests.api.clients import agent
from tests.factories import make_workflow

EMBEDDED = settings.CELERY_BROKER_URL.get_secret_value().startswith("filesystem:")
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def warned():
    """Set by the first warning that names the broker."""
    event = Event()
    sink = logger.add(lambda message: event.set() if "broker" in message else None, level="WARNING")
    yield event
    logger.remove(sink)


def test_a_start_leaves_a_message_for_a_worker():
    make_workflow(tool_name="greet")
    with app.connection_for_read() as broker:
        # These tests' own, since it is named after their secret key.
        queue = broker.SimpleQueue(app.amqp.queues[app.conf.task_default_queue])
        queue.clear()

        agent().post("/api/executions/", {"tool": "greet"})

        message = queue.get(timeout=10)
        message.ack()
        queue.close()
    assert message.headers["task"] == "executions.poll_due_executions"


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
