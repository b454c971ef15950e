"""The approver's page in a real browser, and who may open it."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone

from catalogue.actions.workflows import override_workflow
from catalogue.models import Workflow
from executions.approvals import change_arguments, content_of
from executions.models import Approval, Execution, HourlyUsage, StandingApproval, State
from executions.starting import create_execution
from tests.admin.pages import text_of, told
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING
from tests.executions.steps import request_for
from tests.factories import make_execution, make_workflow

pytestmark = pytest.mark.django_db(transaction=True)
in_a_browser = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING),
]


def waiting_call() -> Execution:
    workflow = make_workflow(name="pay", tool_name="pay")
    override_workflow(workflow, approval_required=True)
    for state in ("completed", "completed", "failed"):
        make_execution(workflow, state=state)
    return create_execution(request_for("pay", {"amount": 1_200, "note": "<b>now</b>"}))


def page_of(execution: Execution) -> str:
    return f"/admin/executions/approval/{execution.pk}/change/"


class TestInABrowser:
    pytestmark = in_a_browser

    @pytest.mark.parametrize("control", ["approve", "approve_for", "refuse"])
    def test_each_control_decides_as_it_says(self, window, control):
        execution = waiting_call()
        window.open(page_of(execution))
        shown = window.browser.run("return document.body.innerText")
        for words in ("1200", "<b>now</b>", "Alice", "2 succeeded", "Each call of pay needs approval."):
            assert words in shown
        if control == "approve_for":
            window.browser.run("document.querySelector('[name=number]').value = '3'")
            window.browser.run("document.querySelector('[name=unit]').value = '60'")
        if control == "refuse":
            window.browser.run("document.querySelector('[name=words]').value = 'Too much.'")
        window.click_through(f'form[action$="/{control}/"] button')
        approval = Approval.objects.get()
        if control == "refuse":
            assert (approval.state, "Too much." in approval.outcome) == (Approval.State.REFUSED, True)
        else:
            assert approval.state == Approval.State.APPROVED
            assert Execution.objects.get(pk=execution.pk).state == State.PENDING
        assert StandingApproval.objects.exists() == (control == "approve_for")
        assert not window.browser.run("return !!document.querySelector('form[action$=\"/approve/\"]')")

    def test_changed_arguments_are_shown_beside_those_that_were_asked_for(self, window):
        execution = waiting_call()
        window.open(page_of(execution))
        window.click("details summary")
        window.browser.run(
            'document.querySelector(\'details [name=arguments]\').value = \'{"amount": 900, "note": "<b>"}\''
        )
        window.click_through('form[action$="/change_arguments/"] button')
        rows = "[...document.querySelectorAll('[data-argument]')].map(row => row.innerText.split(/\\s+/))"
        assert window.run(f"return {rows}") == [["amount", "1200", "900"], ["note", '"<b>now</b>"', '"<b>"']]
        assert not window.run("return !!document.querySelector('form[action$=\"/approve_for/\"]')")
        window.click_through('form[action$="/approve/"] button')
        assert Approval.objects.get().state == Approval.State.APPROVED
        assert Execution.objects.get(pk=execution.pk).payload.sent_input == {"amount": 900, "note": "<b>"}


def test_an_approver_who_has_not_seen_the_change_approves_nothing(admin_client):
    execution = waiting_call()
    seen = Approval.objects.get().binding
    user = User.objects.create_superuser("ben")
    change_arguments(execution.pk, user=user, arguments={"amount": 1}, seen=seen)
    decided = admin_client.post(f"/admin/executions/approval/{execution.pk}/approve/", {"seen": seen})
    assert "ben has changed the arguments" in told(decided)
    stale = {"seen": seen, "arguments": '{"amount": 2}'}
    admin_client.post(f"/admin/executions/approval/{execution.pk}/change_arguments/", stale)
    assert Execution.objects.get(pk=execution.pk).payload.sent_input == {"amount": 1}
    assert Approval.objects.get().is_waiting


def test_the_arguments_are_shown_whole_and_with_what_cannot_be_seen(admin_client):
    """As escapes: U+202E would turn the digits around it, and characters of tags have no width."""
    override_workflow(make_workflow(name="pay", tool_name="pay"), approval_required=True)
    note = "\u202e005\u202c\u200b\U000e0041\xa0caf\xe9"
    given = {"a": "x" * 150_000, "note": note, "z": 5}
    execution = create_execution(request_for("pay", given))
    shown = admin_client.get(page_of(execution)).content.decode()
    assert r"\u202e005\u202c\u200b\udb40\udc41\u00a0café" in shown
    assert "&quot;z&quot;: 5" in shown and "\u202e" not in shown


def test_what_the_tool_did_before_counts_runs_that_go_on(admin_client):
    """A tool whose runs all go on has run; the caller's runs are not more than all."""
    execution = waiting_call()
    Execution.objects.exclude(pk=execution.pk).delete()
    assert "The tool has never run." in text_of(admin_client.get(page_of(execution)))
    for state in ("running", "running"):
        make_execution(execution.workflow, state=state, caller=execution.caller)
    shown = text_of(admin_client.get(page_of(execution)))
    assert "Recent runs: 2, 2 of them by this caller. No run has ended." in shown
    make_execution(execution.workflow, state="failed", caller="token:9")
    shown = text_of(admin_client.get(page_of(execution)))
    assert "Recent runs: 3, 2 of them by this caller. Ended: 1, of which 0 succeeded (0%)." in shown


def test_an_approver_reads_that_the_call_would_not_be_started(admin_client):
    """Its engine may drop a workflow while the call waits; an approval would then lead to nothing."""
    execution = waiting_call()
    assert "The call runs once" in text_of(admin_client.get(page_of(execution)))
    Workflow.objects.update(missing_since=timezone.now())
    shown = text_of(admin_client.get(page_of(execution)))
    assert "The call would not be started now: the engine no longer lists the workflow." in shown
    assert "It runs once" not in shown


def test_an_approver_reads_whether_the_caller_still_waits_and_what_approving_does_then(admin_client):
    """People approved payments of agents that had given up, and that had meanwhile made them otherwise."""
    execution = waiting_call()
    for left, words, gone in (
        (execution.mark_answered, "the caller can ask for the result", False),
        (execution.mark_unanswered, "its caller left without an answer", True),
    ):
        left()
        shown = text_of(admin_client.get(page_of(execution)))
        listing = text_of(admin_client.get("/admin/executions/approval/"))
        assert words in shown
        assert ("caller is gone" in listing, "caller is gone" in shown) == (gone, gone)
        assert ("The call runs all the same, and its record keeps the result." in shown) == gone
    Execution.objects.update(awaited_until=timezone.now() + timedelta(minutes=1))
    assert "a request is waiting for the result" in text_of(admin_client.get(page_of(execution)))
    admin_client.post(page_of(execution).replace("change", "refuse"), {"words": "No."})
    execution.mark_unanswered()
    for address in (page_of(execution), "/admin/executions/approval/"):
        assert "caller is gone" not in text_of(admin_client.get(address)), "it is decided"


def test_a_call_that_waits_for_approval_neither_runs_nor_times_out(admin_client):
    """Its page named a time a few minutes ahead, though its timeout begins with the approval."""
    execution = waiting_call()
    shown = text_of(admin_client.get(f"/admin/executions/execution/{execution.pk}/change/"))
    assert "Waiting for" in shown and "Running for" not in shown and "Times out at" not in shown


def test_nobody_is_offered_to_approve_a_call_of_their_own(admin_client, settings):
    """The refusal came only after the button was pressed."""
    execution = waiting_call()
    Approval.objects.update(asked_by=User.objects.get(username="admin"))
    shown = text_of(admin_client.get(page_of(execution)))
    assert "You cannot approve your own call here; another person must decide." in shown
    assert "Approve" not in shown.split(" Decide ")[1].replace("approve your own", "") and "Refuse" in shown

    settings.CATALOGUE = settings.CATALOGUE | {"approve_own_calls": True}
    assert "Approve once" in text_of(admin_client.get(page_of(execution)))


def test_only_approvers_see_and_decide(client):
    execution = waiting_call()
    user = User.objects.create_user("eve", password="x", is_staff=True)
    client.force_login(user)
    assert client.get(page_of(execution)).status_code == 403
    assert client.post(page_of(execution).replace("change", "approve")).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    assert client.get(page_of(execution)).status_code == 200
    assert client.get("/admin/executions/approval/?decision=waiting").status_code == 200
    refused = client.post(page_of(execution).replace("change", "refuse"), {"words": ""}, follow=True)
    assert "Nothing was decided" in refused.content.decode()
    client.post(page_of(execution).replace("change", "refuse"), {"words": "No."})
    assert Approval.objects.get().state == Approval.State.REFUSED
    # A refusal is an end like any other, and nothing of what was compared has changed.
    assert HourlyUsage.objects.filter(tool_name="pay", outcome="failed").exists()
    assert Approval.objects.get().content == content_of(Execution.objects.get(pk=execution.pk).workflow)
