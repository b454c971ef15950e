"""Asking and telling runs something, on the pages of their executions."""

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from catalogue.models import HistoryEntry, Workflow
from connectors.errors import OutcomeUnknown, Rejected
from executions.models import Execution, State
from tests.admin.pages import page_url, text_of
from tests.executions.steps import timeline, told
from tests.executions.talkative import review, talker
from tests.factories import make_execution

__all__ = ["review", "talker"]

pytestmark = pytest.mark.django_db(transaction=True)
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def running(review: Workflow) -> Execution:
    return make_execution(review, state=State.RUNNING, run_id="run-1")


def press(client: Client, execution: Execution, kind: str, name: str, arguments: str | None = None):
    sent = {"name": name} | ({} if arguments is None else {"arguments": arguments})
    return client.post(page_url(execution).removesuffix("change/") + f"{kind}/", sent)


def forms_of(client: Client, execution: Execution) -> list[str]:
    """The names of what the page lets people ask and tell."""
    shown = client.get(page_url(execution)).content.decode()
    return re.findall(r'name="name" value="([^"]*)"', shown)


def test_the_page_of_a_run_that_goes_on_has_a_form_for_each_query_and_signal(running, review, admin_client):
    """E10: what takes no arguments is but a button, and of an ended run the queries are left."""
    assert forms_of(admin_client, running) == ["progress", "count", "approve"]
    shown = admin_client.get(page_url(running)).content.decode()
    assert shown.count("<textarea") == 2 and "text (string, required)" in shown
    ended = make_execution(review, run_id="run-2")
    assert forms_of(admin_client, ended) == ["progress", "count"]
    queued = make_execution(review, state=State.PENDING)
    assert forms_of(admin_client, queued) == []
    assert "Queries and signals" not in text_of(admin_client.get(page_url(make_execution())))


def test_an_answer_is_shown_with_the_form_to_ask_again(running, talker, admin_client):
    """E10: what a run answers is text and nothing else."""
    talker.answer = {"note": HOSTILE}
    page = press(admin_client, running, "query", "count", '{"text": "tea"}')
    assert page.status_code == 200
    assert f'"note": "{HOSTILE}"' in text_of(page) and HOSTILE not in page.content.decode()
    assert "{&quot;text&quot;: &quot;tea&quot;}" in page.content.decode()
    assert page_url(running) in page.content.decode()
    assert press(admin_client, running, "query", "progress").status_code == 200
    assert [(name, arguments) for _, name, arguments in talker.heard] == [
        ("count", {"text": "tea"}),
        ("progress", {}),
    ]


def test_a_signal_leads_back_to_the_execution_and_is_logged(running, talker, admin_client):
    """E10."""
    page = press(admin_client, running, "signal", "approve", '{"text": "yes"}')
    assert page.status_code == 302 and page["location"] == page_url(running)
    shown = text_of(admin_client.get(page_url(running)))
    assert "The signal approve was sent to the run." in shown and "admin sent approve." in shown
    assert "approve" in HistoryEntry.objects.get(actor=f"user:{User.objects.get().pk}").message
    assert talker.heard == [("run-1", "approve", {"text": "yes"})]


def test_what_cannot_be_sent_is_told_with_the_form_as_it_was(running, talker, admin_client):
    """B5, E5."""
    for arguments, words in (
        ('{"text": ', "This is not valid JSON."),
        ("[1]", "Enter a JSON object"),
        ('{"text": 3}', "/text"),
    ):
        page = press(admin_client, running, "signal", "approve", arguments)
        assert page.status_code == 200 and words in text_of(page), arguments
        assert arguments in text_of(page)
    unknown = press(admin_client, running, "query", HOSTILE)
    assert "It has progress, count" in text_of(unknown) and HOSTILE not in unknown.content.decode()
    assert talker.heard == []
    talker.answer = Rejected("The kettle is cold.")
    assert "The kettle is cold." in text_of(press(admin_client, running, "query", "progress"))
    talker.answer = OutcomeUnknown("The line went dead.")
    page = press(admin_client, running, "signal", "approve", '{"text": "yes"}')
    assert "Do not send it again" in text_of(page)
    assert told(running, "signalled") == [] and "signal_unknown" in timeline(running)


def test_a_link_tells_no_run_anything(running, talker, admin_client):
    """As with every button."""
    for kind in ("query", "signal"):
        address = page_url(running).removesuffix("change/") + f"{kind}/"
        assert admin_client.get(address, {"name": "approve"}).status_code == 405
    assert talker.heard == []
