"""Approvals by REST."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from catalogue.actions.workflows import override_workflow
from config.monitoring import collect, forget_measures
from executions.models import Execution, StandingApproval
from executions.starting import create_execution
from tests.api.clients import administrator
from tests.executions.steps import request_for
from tests.factories import make_workflow

pytestmark = pytest.mark.django_db
SCHEMA = {"type": "object", "properties": {"amount": {"type": "number"}, "to": {"type": "string"}}}


@pytest.fixture
def call() -> Execution:
    override_workflow(make_workflow(tool_name="pay", input_schema=SCHEMA), approval_required=True)
    return create_execution(request_for("pay", {"amount": 7}))


@pytest.fixture
def anna() -> APIClient:
    client = APIClient()
    client.force_login(User.objects.create_superuser("anna"))
    return client


def address(execution: Execution, verb: str = "") -> str:
    return f"/api/approvals/{execution.pk}/{verb}"


def test_a_person_reads_and_decides(call, anna):
    (listed,) = anna.get("/api/approvals/?state=waiting&decided=false&mine=false").json()["results"]
    assert (listed["tool"], listed["caller_name"], listed["approvers_needed"]) == ("pay", "Alice", 1)
    detail = anna.get(address(call)).json()
    assert detail["arguments"] == {"amount": 7}
    assert anna.get(f"/api/approvals/{str(call.pk).upper()}/").json() == detail
    assert detail["past"] == {"last": [], "ended": 0, "succeeded": 0, "success_rate": None, "by_caller": 0}

    decided = anna.post(address(call, "approve/"), {"minutes": 60}, format="json").json()
    assert (decided["state"], decided["decisions"][0]["user"]) == ("approved", "anna")
    assert anna.post(address(call, "refuse/"), {"words": "Late."}, format="json").status_code == 409
    assert len(anna.get("/api/approvals/?decided=true&mine=true").json()["results"]) == 1

    (standing,) = anna.get("/api/standing-approvals/").json()["results"]
    assert anna.post(f"/api/standing-approvals/{standing['id']}/revoke/").json()["revoked_by"] == "anna"
    assert anna.post(f"/api/standing-approvals/{standing['id']}/revoke/").status_code == 409
    assert StandingApproval.objects.get().revoked_at is not None


def test_a_person_changes_the_arguments_and_approves_what_was_read(call, anna):
    before = anna.get(address(call)).json()
    body = {"arguments": {"amount": 5}, "seen": before["binding"]}
    changed = anna.post(address(call, "change-arguments/"), body, format="json").json()
    assert (changed["arguments"], changed["asked_arguments"]) == ({"amount": 5}, {"amount": 7})
    assert (changed["arguments_changed_by"], changed["state"]) == ("anna", "waiting")
    assert changed["binding"] != before["binding"]
    for seen in ({}, {"seen": before["binding"]}):
        assert anna.post(address(call, "approve/"), seen, format="json").status_code == 409
    assert anna.post(address(call, "change-arguments/"), body, format="json").status_code == 409
    approved = anna.post(address(call, "approve/"), {"seen": changed["binding"]}, format="json")
    assert approved.json()["state"] == "approved"
    execution = anna.get(f"/api/executions/{call.pk}/").json()
    assert (execution["input"], execution["changed_input"]) == ({"amount": 7}, {"amount": 5})
    assert execution["arguments_changed_by"] == "anna"
    token = administrator().post(address(call, "change-arguments/"), body, format="json")
    assert token.status_code == 403


@pytest.mark.parametrize(
    "arguments",
    [{"amount": "many"}, {"amount": 7}, ["amount"], "amount"],
    ids=["schema", "same", "list", "text"],
)
def test_arguments_that_do_not_fit_are_refused(call, anna, arguments):
    body = {"arguments": arguments, "seen": anna.get(address(call)).json()["binding"]}
    answer = anna.post(address(call, "change-arguments/"), body, format="json")
    assert answer.status_code in (400, 409)
    assert anna.get(address(call)).json()["arguments"] == {"amount": 7}


def test_an_approver_reads_whether_the_caller_is_gone(call, anna):
    """As long as it waits: once it is decided, nothing depends on it any more."""

    def shown() -> set[bool]:
        [listed] = anna.get("/api/approvals/").json()["results"]
        return {listed["unanswered"], anna.get(address(call)).json()["unanswered"]}

    assert shown() == {False}
    call.mark_unanswered()
    assert shown() == {True}
    anna.post(address(call, "refuse/"), {"words": "No."}, format="json")
    call.mark_unanswered()
    assert shown() == {False}


@pytest.mark.parametrize(("words", "shown"), [("Not today", "Not today."), ("Why so much?", "Why so much?")])
def test_a_refusal_reads_as_sentences(call, anna, words, shown):
    refused = anna.post(address(call, "refuse/"), {"words": words}, format="json").json()
    assert refused["outcome"] == f"anna refused it: {shown} Nothing was started."


def test_a_refused_call_counts_as_a_call_that_took_no_time(call, anna):
    """An approver who comes back after lunch does not make the tool slow."""
    Execution.objects.filter(pk=call.pk).update(created_at=timezone.now() - timedelta(hours=1))
    anna.post(address(call, "refuse/"), {"words": "No."}, format="json")
    ended = anna.get(f"/api/executions/{call.pk}/").json()
    assert (ended["state"], ended["duration_ms"]) == ("failed", None)
    (row,) = anna.get("/api/statistics/").json()["results"]
    assert (row["calls"], row["failures"]) == (1, 1)
    assert (row["mean_ms"], row["p50_ms"], row["p95_ms"]) == (None, None, None)
    forget_measures()
    measured = collect().decode()
    assert 'executions_ended_total{outcome="failed",' in measured
    assert "execution_duration_seconds_count" not in measured


@pytest.mark.parametrize("by", ["the agent", "a default of the curator"])
def test_a_rule_for_an_argument_that_the_engine_has_renamed_holds_every_call(by):
    """Whoever still sends the old name, the rule does not see the new one."""
    workflow = make_workflow(tool_name="pay", input_schema=SCHEMA)
    decisions: dict[str, Any] = {"approval_rules": [{"argument": "/amount", "is": "over", "value": 1000}]}
    given = {"total": 1_000_000}
    if by == "the agent":
        given["amount"] = 5
    else:
        decisions["argument_overrides"] = {"amount": {"default": 5}}
    client = administrator()
    assert client.patch("/api/workflows/pay/", decisions, format="json").status_code == 200
    workflow.refresh_from_db()
    workflow.input_schema = {"type": "object", "properties": {"total": {"type": "number"}}}
    workflow.save()

    body = {"tool": "pay", "arguments": given}
    answer = client.post("/api/executions/", body, format="json").json()
    assert answer["state"] == "unapproved", answer
    (listed,) = client.get("/api/approvals/").json()["results"]
    assert "no longer fits" in str(listed) and "has no amount; it has total" in str(listed)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"argument": "/amuont", "is": "over", "value": 1}, "has no amuont; it has amount, to"),
        ({"argument": "/to", "is": "over", "value": 1}, "string cannot be compared with a number"),
        ({"argument": "/amount", "is": "equal_to", "value": "x"}, "is never number"),
        ({"argument": "/amount", "is": "over", "value": "1"}, "requires a number"),
        ({"argument": "amount", "is": "over", "value": 1}, "begins with a slash"),
        ({"argument": "/to", "is": "one_of", "value": []}, "requires a list"),
        ({"argument": "/amount/*", "is": "over", "value": 1}, "has no items"),
    ],
)
def test_a_rule_that_does_not_fit_the_schema_is_refused(rule, problem):
    make_workflow(tool_name="pay", input_schema=SCHEMA)
    answer = administrator().patch("/api/workflows/pay/", {"approval_rules": [rule]}, format="json")
    assert answer.status_code == 400
    assert problem in str(answer.json())
