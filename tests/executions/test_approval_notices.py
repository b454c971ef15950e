"""Notices of approvals: a webhook on the wire and a mail server, which may fail."""

import asyncio
import base64
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial

import pytest
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.utils import timezone
from pydantic import SecretStr

from catalogue.actions.workflows import override_workflow
from config.environment import Environment
from executions import approval_notices, notices
from executions.approvals import decide
from executions.models import ApprovalNotice
from executions.starting import create_execution
from tests.connectors.scripted import (
    Behaviour,
    Received,
    ScriptedEngine,
    replies,
    response,
    sends,
    sends_and_hangs_up,
)
from tests.engines.hostile_servers import hostile
from tests.executions.engines import in_turn
from tests.executions.steps import request_for
from tests.logs import shown_lines
from tests.threads import together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.approval_notices", "executions.notices"),
    pytest.mark.usefixtures("guarded", "approver"),
]
SECRET = "a secret of more than thirty-two characters"
send_due = partial(approval_notices.send_due, seconds=10)


@pytest.fixture
def approver() -> User:
    user = User.objects.create_user("anna", "anna@example.com", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def guarded(workflow):
    return override_workflow(workflow, approval_required=True)


@pytest.fixture
def receive(configured) -> Iterator[Callable[..., ScriptedEngine]]:
    """Have a receiver of webhooks behave so in turn, the last way from then on."""
    with ExitStack() as servers:

        def begin(*behaviours: Behaviour, path: str = "", secret: str = SECRET) -> ScriptedEngine:
            server = servers.enter_context(hostile(in_turn(*behaviours)))
            secret_of_webhook = SecretStr(secret)
            configured(approval_webhook_url=server.base_url + path, approval_webhook_secret=secret_of_webhook)
            return server

        yield begin


@pytest.fixture
def letters(settings):
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 9
    mail.outbox.clear()
    return mail.outbox


def ask(**arguments):
    return create_execution(request_for("report", arguments))


def make_due() -> None:
    ApprovalNotice.objects.update(next_attempt_at=timezone.now())


def signature_of(request: Received, key: bytes) -> str:
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode()
    return f"v1,{base64.b64encode(hmac.digest(key, signed + request.body, 'sha256')).decode()}"


def test_a_signed_webhook_tells_of_the_request_and_the_outcome(receive, approver):
    server = receive(replies(500), replies(200))
    execution = ask(amount=7)
    # The call was answered; nothing was sent yet.
    assert server.received == []
    assert send_due() == 0
    failed = ApprovalNotice.objects.get()
    assert "500" in failed.error
    assert failed.next_attempt_at > timezone.now()
    assert send_due() == 0
    # By a clock that has been set back.
    ApprovalNotice.objects.update(next_attempt_at=timezone.now() + timedelta(days=1))
    assert send_due() == 1
    decide(execution.pk, user=approver, verdict="refuse", words="Too much.")
    assert [send_due(), send_due()] == [1, 0]

    first, second, outcome = server.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"] != outcome.headers["webhook-id"]
    for request in server.received:
        assert request.headers["webhook-signature"] == signature_of(request, SECRET.encode())
    asked, told = json.loads(second.body), json.loads(outcome.body)
    assert asked["type"] == "approval.requested"
    assert asked["data"]["arguments"] == {"amount": 7}
    assert asked["data"]["url"].endswith(f"/{execution.pk}/change/")
    assert (told["type"], told["data"]["state"]) == ("approval.decided", "refused")
    assert "Too much." in told["data"]["outcome"]


@pytest.mark.parametrize(
    "target", ["", "/", "/hook", "/hook/", "/hook/?sig=a%2Bb%2F&sp=%2Ftriggers", "?team=a"]
)
def test_a_webhook_is_sent_to_exactly_its_address(receive, configured, target, monkeypatch):
    """Some services take a query as the proof of who sends, and some redirect without the last slash."""
    server = receive(replies(200))
    monkeypatch.setenv("CATALOGUE_APPROVAL_WEBHOOK_URL", server.base_url + target)
    monkeypatch.setenv("CATALOGUE_APPROVAL_WEBHOOK_SECRET", SECRET)
    configured(approval_webhook_url=Environment().approval_webhook_url)
    ask()
    assert send_due() == 1
    assert [request.target for request in server.received] == [
        target if target.startswith("/") else f"/{target}"
    ]


def test_a_receiver_verifies_with_the_key_that_standard_webhooks_has_it_take(receive):
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    server = receive(replies(200), secret=secret)
    ask()
    assert send_due() == 1
    (request,) = server.received
    assert request.headers["webhook-signature"] == signature_of(request, base64.b64decode(secret[6:]))


@pytest.mark.parametrize("end", ["too large", "broken off", "compressed in an unknown way"])
def test_the_status_of_an_answer_decides_whatever_its_body_is(receive, end):
    async def accept(_: Received, writer: asyncio.StreamWriter) -> None:
        length = 10_000_000 if end == "broken off" else 11_000_000
        coding = b"content-encoding: br\r\n" if end.startswith("compressed") else b""
        writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n" % (coding, length))
        with suppress(ConnectionError):
            for _ in range(1 if end == "broken off" else 11):
                writer.write(b"x" * (1_000 if end == "broken off" else 1_000_000))
                await writer.drain()
        writer.close()

    receive(accept)
    ask()
    assert send_due() == 1
    assert ApprovalNotice.objects.get().error == ""


def test_a_redirect_is_not_followed_and_the_error_says_what_to_correct(receive):
    receive(sends(b"HTTP/1.1 308 Moved\r\nlocation: /planted\r\ncontent-length: 0\r\n\r\n"))
    ask()
    assert send_due() == 0
    error = ApprovalNotice.objects.get().error
    assert "308" in error and "CATALOGUE_APPROVAL_WEBHOOK_URL" in error


def test_the_path_and_query_of_a_webhook_are_neither_recorded_nor_logged(receive, caplog):
    """Services such as chats take whoever knows it for authorised."""
    receive(sends_and_hangs_up(), path="/services/T0/planted-in-the-path/?sig=planted-in-the-query")
    ask()
    assert send_due() == 0
    failed = ApprovalNotice.objects.get()
    assert "POST ***" in failed.error and "planted" not in failed.error + caplog.text


def test_a_webhook_that_does_not_respond_occupies_one_thread_and_does_not_delay_mail(receive, letters):
    """A worker polls and starts runs with the same few threads."""
    arrived, end = threading.Event(), threading.Event()

    async def hang(request: Received, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await asyncio.to_thread(end.wait)
        writer.write(response(500))

    server = receive(hang)
    for amount in range(3):
        ask(amount=amount)
    with ThreadPoolExecutor(1) as worker:
        first_pass = worker.submit(together, send_due)
        try:
            assert arrived.wait(20)
            assert send_due() == 0, "another thread is sending"
        finally:
            end.set()
        assert first_pass.result(20) == [3]
    assert len(server.received) == 1, "the other two would have waited for the same server"
    assert len(letters) == 3


def test_a_notice_that_is_refused_does_not_hold_up_the_next_ones(receive):
    receive(replies(400), replies(200))
    for amount in range(3):
        ask(amount=amount)
    assert send_due() == 0
    refused = ApprovalNotice.objects.get(attempts=1)
    assert "400" in refused.error
    assert send_due() == 2
    assert ApprovalNotice.objects.get(sent_at=None) == refused


def test_all_notices_are_repeated_soon_once_one_of_them_is_sent_again(receive):
    """After a night, each would otherwise wait for its own time, up to an hour."""
    receive(*[replies(500)] * 3, replies(200))
    for _ in range(3):
        ask()
        assert send_due() == 0
    in_an_hour = timezone.now() + timedelta(hours=1)
    ApprovalNotice.objects.update(attempts=12, next_attempt_at=in_an_hour)
    oldest = ApprovalNotice.objects.filter(pk=ApprovalNotice.objects.earliest("pk").pk)
    oldest.update(next_attempt_at=timezone.now())
    assert [send_due(), send_due()] == [1, 2]


def test_the_log_says_once_that_notices_fail_and_when_they_are_sent_or_given_up(receive):
    receive(*[replies(500)] * 3, replies(200))
    with shown_lines() as lines:
        for _ in range(2):
            ask()
        for _ in range(2):
            send_due()
        make_due()
        long_ago = timezone.now() - notices.GIVE_UP_AFTER
        oldest = ApprovalNotice.objects.filter(pk=ApprovalNotice.objects.earliest("pk").pk)
        oldest.update(created_at=long_ago, next_attempt_at=long_ago)
        for _ in range(2):
            send_due()
    assert len(lines) == 3
    for line, outcome in zip(lines, ("is repeated", "is given up", "sent at attempt 2"), strict=True):
        assert outcome in line


def test_approvers_get_a_letter_even_if_the_mail_server_was_away(letters, settings):
    User.objects.create_user("eve", "eve@example.com", is_staff=True)
    backend = settings.EMAIL_BACKEND
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    ask(amount=7)
    assert send_due() == 0
    settings.EMAIL_BACKEND = backend
    make_due()
    assert send_due() == 1
    (letter,) = letters
    assert letter.bcc == ["anna@example.com"]
    assert "example.com" not in str(letter.message()["bcc"])
    assert '"amount": 7' in letter.body


def test_nothing_is_written_where_nothing_is_to_be_sent():
    ask(amount=7)
    assert not ApprovalNotice.objects.exists()
