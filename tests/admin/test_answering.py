"""A person at the desk answers what a paused run asks."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from catalogue.actions.workflows import override_workflow
from catalogue.models import Workflow
from connectors.protocol import Question
from executions.inbox import TOPICS
from executions.models import Event, Execution, InputRequest, State
from executions.questions import record_questions
from executions.subscriptions import find_events
from tests.factories import make_execution, make_workflow

pytestmark = pytest.mark.django_db

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "minimum": 1},
        "to": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "required": ["amount", "to"],
}


def pause(schema: dict[str, Any] = NESTED, identity: str = "q1", **more: Any) -> Execution:
    execution = make_execution(
        Workflow.objects.first() or make_workflow(name="report"),
        state=State.RUNNING, run_id="run-1", lease_holder="us", admitted_at=timezone.now(),
    )  # fmt: skip
    record_questions(execution, [Question(id=identity, message="How <much>?", schema=schema, **more)])
    Execution.objects.update(lease_holder="")
    return execution


def page_of(execution: Execution) -> str:
    return reverse("admin:executions_execution_change", args=[execution.pk])


def form_of(execution: Execution, question: str = "q1") -> str:
    return f"{reverse('admin:executions_execution_answer', args=[execution.pk])}?question={question}"


def staff(*permissions: str) -> Client:
    user = User.objects.create_user(f"user{User.objects.count()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def test_the_page_of_the_run_shows_the_question_and_leads_to_a_form(admin_client):
    until = timezone.now() + timedelta(hours=1)
    execution = pause(url="https://erp.example/7", until=until)
    shown = admin_client.get(page_of(execution)).content.decode()
    assert "How &lt;much&gt;?" in shown and form_of(execution) in shown
    assert 'href="https://erp.example/7"' in shown
    assert "waiting for a person&#x27;s answer" in shown
    form = admin_client.get(form_of(execution)).content.decode()
    assert 'name="argument/to/city"' in form and "How &lt;much&gt;?" in form


def test_what_a_person_types_becomes_the_answer(admin_client):
    execution = pause()
    typed = {"argument/": "", "argument/amount": "7", "argument/to/": "", "argument/to/city": "Bern"}
    sent = admin_client.post(form_of(execution), typed | {"send": "1"})
    assert sent.status_code == 302 and sent.url == page_of(execution)
    answer = InputRequest.objects.get().answers["q1"]
    assert answer["content"] == {"amount": 7, "to": {"city": "Bern"}}
    assert (answer["by"], answer["door"]) == ("admin", "admin")
    shown = admin_client.get(page_of(execution)).content.decode()
    assert "admin has answered" in shown and form_of(execution) not in shown
    again = admin_client.post(form_of(execution), typed | {"send": "1"}, follow=True).content.decode()
    assert "admin has answered this already" in again


def test_what_does_not_fit_is_said_beside_its_field(admin_client):
    execution = pause()
    typed = {"argument/": "", "argument/amount": "0", "argument/to/": "", "argument/to/city": "Bern"}
    refused = admin_client.post(form_of(execution), typed | {"send": "1"}).content.decode()
    assert "Nothing was answered." in refused and "Bern" in refused
    assert InputRequest.objects.get().answers == {}


def test_consent_needs_one_button(admin_client):
    execution = pause({"type": "object", "properties": {}})
    assert "Your consent is all that it needs." in admin_client.get(form_of(execution)).content.decode()
    admin_client.post(form_of(execution), {"argument/": "", "send": "1"})
    assert InputRequest.objects.get().answers["q1"]["content"] == {}


def test_a_question_that_has_gone_leads_back(admin_client):
    execution = pause()
    shown = admin_client.get(form_of(execution, "q9"), follow=True).content.decode()
    assert "The run no longer asks this." in shown


def test_who_may_only_look_sees_no_form(admin_client):
    execution = pause()
    viewer = staff("view_execution")
    assert form_of(execution) not in viewer.get(page_of(execution)).content.decode()
    assert viewer.get(form_of(execution)).status_code == 403


def test_approvers_answer_where_the_workflow_says_so():
    execution = pause()
    override_workflow(execution.workflow, answered_by="approvers")
    operator, approver = (
        staff("change_execution", "view_execution"),
        staff("decide_approval", "view_execution"),
    )
    assert operator.get(form_of(execution)).status_code == 403
    assert form_of(execution) in approver.get(page_of(execution)).content.decode()
    assert approver.get(form_of(execution)).status_code == 200


def test_members_of_the_workflows_group_answer_and_others_do_not(admin_client):
    """A8.2: with any permissions but those of a superuser."""
    execution, group = pause({"type": "object"}), Group.objects.create(name="Baristas")
    override_workflow(execution.workflow, answer_group="Baristas")
    outsider, member = (
        staff("change_execution", "decide_approval", "view_execution"),
        staff("view_execution"),
    )
    group.user_set.add(User.objects.get(pk=member.session["_auth_user_id"]))
    assert outsider.get(form_of(execution)).status_code == 403
    assert form_of(execution) not in outsider.get(page_of(execution)).content.decode()
    assert form_of(execution) in member.get(page_of(execution)).content.decode()
    assert admin_client.get(form_of(execution)).status_code == 200
    member.post(form_of(execution), {"argument/": "", "send": "1"})
    assert InputRequest.objects.get().answers["q1"]["content"] == {}


def test_the_inbox_lists_runs_that_wait_and_each_question_is_an_event(admin_client):
    execution = pause()
    row = TOPICS["paused"].in_inbox()
    assert row is not None and (row.number, row.names) == (1, ["report"])
    assert row.since == execution.events.get(kind="asked").at
    listed = admin_client.get(row.url).content.decode()
    assert page_of(execution) in listed
    assert "Runs that wait for a person" in admin_client.get(reverse("admin:index")).content.decode()
    from tests.executions.test_subscriptions import subscribe

    subscribe(User.objects.get(username="admin"))
    find_events()
    assert Event.objects.filter(topic="paused").count() == 1
    Execution.objects.update(lease_holder="us")
    record_questions(Execution.objects.get(), [Question(id="q2", message="And?", schema={"type": "object"})])
    find_events()
    assert Event.objects.filter(topic="paused", ended_at=None).count() == 1
    assert Event.objects.filter(topic="paused").count() == 2
