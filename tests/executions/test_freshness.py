"""Readers of a status: many of them cause one poll, and only where it is worth one (B7)."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.utils import timezone

from catalogue.models import Source, Workflow
from executions.models import Execution, State
from executions.reading import find_execution
from executions.wakeups import request_poll_if_stale
from tests.api.clients import administrator
from tests.connectors.scripted import replies
from tests.executions.engines import status
from tests.executions.steps import ALICE, advance_due_executions, make_active, read
from tests.threads import together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.wakeups"),
]

LATER = timedelta(minutes=10)


@pytest.fixture
def running(workflow: Workflow) -> Execution:
    """A long run that was polled a minute ago and is not due for a good while."""
    return plan(make_active(workflow, State.RUNNING))


def plan(execution: Execution, **fields: Any) -> Execution:
    now = timezone.now()
    fields = {"polled_at": now - timedelta(minutes=1), "next_attempt_at": now + LATER} | fields
    Execution.objects.filter(pk=execution.pk).update(**fields)
    return read(execution)


def look(execution: Execution) -> None:
    request_poll_if_stale(find_execution(str(execution.pk), caller=ALICE))


def test_fifty_readers_at_once_cause_one_poll(engine, running):
    """B7, A8.1: and those who read right afterwards cause none."""
    engine.on_status = replies(200, status(progress=40))
    together(*[partial(look, running)] * 50)
    assert advance_due_executions() == 1
    assert read(running).progress == 40

    plan(running, polled_at=timezone.now())
    together(*[partial(look, running)] * 50)
    assert advance_due_executions() == 0

    plan(running)
    look(running)
    assert advance_due_executions() == 1
    assert engine.count("status") == 2


def test_whoever_reads_over_rest_gets_what_the_engine_says_a_moment_later(engine, running):
    """A8.1, A8.3: the answer itself comes at once, from the record."""
    engine.on_status = replies(200, status(progress=40))
    client = administrator()
    address = f"/api/executions/{running.pk}/"
    assert client.get(address).json()["progress"] is None

    advance_due_executions()

    assert client.get(address).json()["progress"] == 40
    assert engine.count("status") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"polled_at": timedelta(seconds=-1)},
        {"polled_at": None, "started_at": timedelta(seconds=-1)},
        {"attempts": 1},
        {"lease_holder": "a request that waits", "lease_expires_at": LATER},
        {"state": State.PENDING},
        {"state": State.COMPLETED},
        {"workflow": None},
    ],
    ids=["just polled", "just started", "trouble", "waited for", "not started", "ended", "workflow deleted"],
)
def test_readers_do_not_bring_a_poll_forward_where_it_would_not_help(running, fields):
    """B7: an engine that asked for patience gets it, too."""
    now = timezone.now()
    times = {name: now + value for name, value in fields.items() if isinstance(value, timedelta)}
    before = plan(running, **fields | times).next_attempt_at

    look(running)

    assert read(running).next_attempt_at == before


def test_readers_know_the_engines_minimum(running):
    """B2: asking a worker in vain, again and again, would cost more than the poll."""
    config = Source.objects.get().config
    Source.objects.update(config=config | {"min_poll_seconds": 90.0})
    before = running.next_attempt_at

    look(running)
    assert read(running).next_attempt_at == before

    plan(running, polled_at=timezone.now() - timedelta(seconds=91))
    look(running)
    assert read(running).next_attempt_at <= timezone.now()
