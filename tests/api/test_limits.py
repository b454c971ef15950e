"""Limits and the queue, as REST shows and sets them."""

from typing import Any

import pytest

from catalogue.models import Revision, Source
from executions.models import Execution
from executions.queue import admit_queued
from tests.api.clients import administrator, agent
from tests.factories import make_source, make_workflow

pytestmark = pytest.mark.django_db


@pytest.fixture
def configured(settings: Any) -> Any:
    """Change the product's settings for one test."""

    def change(**values: Any) -> None:
        settings.CATALOGUE = settings.CATALOGUE | values

    return change


def test_a_call_beyond_the_queue_is_told_when_to_come_back(configured):
    """B5, B7: 503 with Retry-After, and nothing recorded."""
    configured(max_concurrent_executions=1, max_queued_executions=1)
    make_workflow(tool_name="greet")
    client = agent()
    for _ in range(2):
        assert client.post("/api/executions/", {"tool": "greet"}).status_code == 202

    response = client.post("/api/executions/", {"tool": "greet"})

    assert response.status_code == 503
    assert 1 <= int(response["Retry-After"]) <= 300
    assert "Nothing was started; try again in" in response.json()["detail"]
    assert Execution.objects.count() == 2


def test_a_call_that_waits_in_the_queue_is_shown_as_such(configured):
    """A8.2"""
    configured(max_concurrent_executions=1)
    make_workflow(tool_name="greet")
    client = agent()
    first, second = (client.post("/api/executions/", {"tool": "greet"}).json() for _ in range(2))

    assert (first["queued"], second["queued"], second["state"]) == (False, True, "pending")
    assert second["admitted_at"] is None
    assert [event["kind"] for event in second["events"]] == ["created", "queued"]

    configured(max_concurrent_executions=2)
    admit_queued()
    admitted = client.get(f"/api/executions/{second['id']}/").json()
    assert (admitted["queued"], admitted["events"][-1]["kind"]) == (False, "admitted")


def test_a_source_is_limited_and_freed_again():
    """B4, B7: agents' calls see it, so the revision moves."""
    make_source("orders", next_refresh_at=None)
    client, before = administrator(), Revision.current()

    limited = client.patch("/api/sources/orders/", {"max_concurrent": 4})

    assert (limited.status_code, limited.json()["max_concurrent"]) == (200, 4)
    assert Revision.current() > before
    assert Source.objects.get().next_refresh_at is None, "a limit is no reason to list the engine again"
    assert client.patch("/api/sources/orders/", {"max_concurrent": None}).json()["max_concurrent"] is None


def test_a_source_is_added_with_a_limit():
    made = administrator().post(
        "/api/sources/",
        {
            "name": "orders",
            "kind": "simplified",
            "config": {"base_url": "http://127.0.0.1:9"},
            "max_concurrent": 4,
        },
    )
    assert made.json()["max_concurrent"] == 4
    assert Source.objects.get().max_concurrent == 4
