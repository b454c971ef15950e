"""Retrying, pausing and terminating runs by the buttons of their pages."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from catalogue.models import HistoryEntry, Workflow
from connectors.registry import BUILT_IN
from executions.models import Execution, State
from executions.rerunning import rerun_id
from tests.admin.pages import page_url, text_of
from tests.executions.controlled_engine import Controlled
from tests.executions.engines import WORKFLOW_ID, WireEngine, running_wire_engine
from tests.factories import make_execution, make_source, make_workflow

pytestmark = pytest.mark.django_db(transaction=True)
RUN = "run-1"


@pytest.fixture
def engine():
    with running_wire_engine() as engine:
        yield engine


@pytest.fixture
def controlled(engine: WireEngine) -> Controlled:
    return Controlled(engine)


@pytest.fixture
def workflow(controlled: Controlled, monkeypatch: pytest.MonkeyPatch) -> Workflow:
    monkeypatch.setitem(BUILT_IN, "controlled", "tests.executions.controlled_engine:ControlledConnector")
    source = make_source(base_url=controlled.wire.base_url, kind="controlled")
    source.configured_at = timezone.now() - timedelta(hours=1)
    source.save()
    return make_workflow(source, upstream_id=WORKFLOW_ID, name="report")


def make(workflow: Workflow, state: State, **fields: Any) -> Execution:
    payload = {"input": {"amount": 7}, "output": None}
    return make_execution(workflow, state=state, run_id=RUN, payload=payload, **fields)


def buttons_of(client: Any, execution: Execution) -> set[str]:
    return set(re.findall(r'action="\.\./(\w+)/"', client.get(page_url(execution)).content.decode()))


def press(client: Any, execution: Execution, name: str) -> Any:
    return client.post(page_url(execution).removesuffix("change/") + f"{name}/")


@pytest.mark.parametrize(
    ("state", "fields", "buttons"),
    [
        (State.FAILED, {}, {"retry", "retry_failed"}),
        (State.CANCELLED, {}, {"retry", "retry_failed"}),
        (State.COMPLETED, {}, set()),
        (State.UNCONFIRMED, {}, set()),
        (State.PENDING, {}, {"cancel"}),
        (State.RUNNING, {}, {"cancel", "pause", "terminate"}),
        (State.RUNNING, {"is_held": True}, {"cancel", "resume", "terminate"}),
        (State.RUNNING, {"cancel_requested_at": timezone.now()}, {"cancel", "terminate"}),
    ],
)
def test_the_page_offers_what_is_possible_now(workflow, admin_client, state, fields, buttons):
    shown = buttons_of(admin_client, make(workflow, state, **fields))
    assert shown & {"cancel", "retry", "retry_failed", "pause", "resume", "terminate"} == buttons


def test_an_engine_that_cannot_is_not_offered(engine, admin_client):
    plain = make_workflow(make_source("plain", base_url=engine.base_url))
    assert buttons_of(admin_client, make(plain, State.RUNNING)) == {"cancel"}
    assert buttons_of(admin_client, make(plain, State.FAILED)) == {"retry"}


@pytest.mark.parametrize("action", ["retry", "retry_failed"])
def test_a_retry_leads_to_its_page_and_both_attempts_are_linked(workflow, admin_client, action):
    failed = make(workflow, State.FAILED)
    answered = press(admin_client, failed, action)
    attempt = Execution.objects.get(pk=rerun_id(failed.pk))
    assert answered["Location"] == page_url(attempt)
    assert (attempt.door, attempt.from_failed_step) == ("admin", action == "retry_failed")
    assert page_url(failed) in admin_client.get(page_url(attempt)).content.decode()
    assert page_url(attempt) in admin_client.get(page_url(failed)).content.decode()
    assert not buttons_of(admin_client, failed)
    assert HistoryEntry.objects.get(object_id=failed.pk).message == f"Run again as execution {attempt.pk}."
    press(admin_client, failed, action)
    assert Execution.objects.count() == 2


def test_a_run_is_paused_resumed_and_terminated(workflow, controlled, admin_client):
    run = make(workflow, State.RUNNING, deadline_at=timezone.now() + timedelta(hours=1))
    press(admin_client, run, "pause")
    assert controlled.paused == {RUN}
    press(admin_client, run, "resume")
    assert not controlled.paused
    press(admin_client, run, "terminate")
    assert controlled.wire.count("terminate") == 1
    assert "admin through the admin" in text_of(admin_client.get(page_url(run)))


def test_only_those_who_run_workflows_retry_and_only_those_who_change_executions_control(
    workflow, staff_with
):
    failed, running = make(workflow, State.FAILED), make(workflow, State.RUNNING)
    changer = staff_with("view_execution", "change_execution")
    assert not buttons_of(changer, failed) and "pause" in buttons_of(changer, running)
    assert press(changer, failed, "retry").status_code == 403
    User.objects.all().delete()
    viewer = staff_with("view_execution", "add_execution", "view_workflow")
    assert not buttons_of(viewer, running)
    for action in ("retry", "pause", "terminate"):
        assert press(viewer, running, action).status_code == 403
    assert not Execution.objects.filter(retries=1).exists()
