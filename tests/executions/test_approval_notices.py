"""Notices of approvals: a webhook and a mail server on the wire, which may fail."""

import asyncio
import base64
import hashlib
import hmac
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.utils import timezone
from pydantic import SecretStr

from catalogue.actions.workflows import override_workflow
from catalogue.models import Workflow
from config.environment import Environment
from executions import approval_notices
from executions.approvals import decide
from executions.models import ApprovalNotice
from executions.starting import create_execution
from tests.connectors.scripted import Received, response
from tests.engines.hostile_servers import hostile
from tests.executions.steps import request_for
from tests.logs import shown_lines

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.databases("executions.approval_notices")]
SECRET = "a secret of more than thirty-two characters"


@pytest.fixture
def approver() -> User:
    user = User.objects.create_user("anna", "anna@example.com", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def guarded(workflow: Workflow) -> Workflow:
    return override_workflow(workflow, approval_required=True)


def make_due() -> None:
    ApprovalNotice.objects.update(next_attempt_at=timezone.now())


def test_a_signed_webhook_tells_of_the_request_and_the_outcome(
    guarded: Workflow, approver: User, configured: Any
) -> None:
    received: list[Received] = []
    answers = iter([500, 200, 200])

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        received.append(request)
        writer.write(response(next(answers)))

    with hostile(behave) as server:
        secret = SecretStr(SECRET)
        configured(approval_webhook_url=server.base_url + "/hook", approval_webhook_secret=secret)
        execution = create_execution(request_for("report", {"amount": 7}))
        # The call was answered; nothing was sent yet.
        assert received == []
        assert approval_notices.send_due(seconds=10) == 0
        failed = ApprovalNotice.objects.get()
        assert "500" in failed.error
        assert failed.next_attempt_at > timezone.now()
        assert approval_notices.send_due(seconds=10) == 0
        # By a clock that has been set back.
        ApprovalNotice.objects.update(next_attempt_at=timezone.now() + timedelta(days=1))
        assert approval_notices.send_due(seconds=10) == 1
        decide(execution.pk, user=approver, verdict="refuse", words="Too much.")
        assert approval_notices.send_due(seconds=10) == 1
        assert approval_notices.send_due(seconds=10) == 0

    first, second, outcome = received
    assert first.headers["webhook-id"] == second.headers["webhook-id"] != outcome.headers["webhook-id"]
    for request in received:
        signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode()
        digest = hmac.new(SECRET.encode(), signed + request.body, hashlib.sha256).digest()
        assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    asked, told = json.loads(second.body), json.loads(outcome.body)
    assert asked["type"] == "approval.requested"
    assert asked["data"]["arguments"] == {"amount": 7}
    assert asked["data"]["url"].endswith(f"/{execution.pk}/change/")
    assert (told["type"], told["data"]["state"]) == ("approval.decided", "refused")
    assert "Too much." in told["data"]["outcome"]


@pytest.mark.parametrize(
    "target", ["", "/", "/hook", "/hook/", "/hook/?sig=a%2Bb%2F&sp=%2Ftriggers", "?team=a"]
)
def test_a_webhook_is_sent_to_exactly_its_address(
    guarded: Workflow, approver: User, configured: Any, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some services take a query as the proof of who sends, and some redirect without the last slash."""
    received: list[Received] = []

    async def accept(request: Received, writer: asyncio.StreamWriter) -> None:
        received.append(request)
        writer.write(response(200))

    with hostile(accept) as server:
        monkeypatch.setenv("CATALOGUE_APPROVAL_WEBHOOK_URL", server.base_url + target)
        monkeypatch.setenv("CATALOGUE_APPROVAL_WEBHOOK_SECRET", SECRET)
        read = Environment()
        configured(
            approval_webhook_url=read.approval_webhook_url,
            approval_webhook_secret=read.approval_webhook_secret,
        )
        create_execution(request_for("report"))
        assert approval_notices.send_due(seconds=10) == 1
    assert [request.target for request in received] == [target if target.startswith("/") else f"/{target}"]


@pytest.mark.parametrize("secret", ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", SECRET])
def test_a_receiver_verifies_with_the_key_that_standard_webhooks_has_it_take(
    guarded: Workflow, approver: User, configured: Any, secret: str
) -> None:
    received: list[Received] = []

    async def accept(request: Received, writer: asyncio.StreamWriter) -> None:
        received.append(request)
        writer.write(response(200))

    with hostile(accept) as server:
        configured(approval_webhook_url=server.base_url, approval_webhook_secret=SecretStr(secret))
        create_execution(request_for("report"))
        assert approval_notices.send_due(seconds=10) == 1
    (request,) = received
    key = base64.b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode()
    digest = hmac.digest(key, signed + request.body, "sha256")
    assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize("end", ["too large", "broken off", "compressed in an unknown way"])
def test_the_status_of_an_answer_decides_whatever_its_body_is(
    guarded: Workflow, approver: User, configured: Any, end: str
) -> None:
    async def accept(_: Received, writer: asyncio.StreamWriter) -> None:
        length = 10_000_000 if end == "broken off" else 11_000_000
        coding = b"content-encoding: br\r\n" if end.startswith("compressed") else b""
        writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n" % (coding, length))
        with suppress(ConnectionError):
            for _ in range(1 if end == "broken off" else 11):
                writer.write(b"x" * (1_000 if end == "broken off" else 1_000_000))
                await writer.drain()
        writer.close()

    with hostile(accept) as server:
        configured(approval_webhook_url=server.base_url, approval_webhook_secret=SecretStr(SECRET))
        create_execution(request_for("report"))
        assert approval_notices.send_due(seconds=10) == 1
    assert ApprovalNotice.objects.get().error == ""


def test_a_redirect_is_not_followed_and_the_error_says_what_to_correct(
    guarded: Workflow, approver: User, configured: Any
) -> None:
    async def move(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 308 Moved\r\nlocation: /planted\r\ncontent-length: 0\r\n\r\n")

    with hostile(move) as server:
        configured(approval_webhook_url=server.base_url, approval_webhook_secret=SecretStr(SECRET))
        create_execution(request_for("report"))
        assert approval_notices.send_due(seconds=10) == 0
    assert ApprovalNotice.objects.get().error == (
        "The webhook answered with 308, a redirect, which is not followed. "
        "Correct CATALOGUE_APPROVAL_WEBHOOK_URL."
    )


def test_the_path_and_query_of_a_webhook_are_neither_recorded_nor_logged(
    guarded: Workflow, approver: User, configured: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Services such as chats take whoever knows it for authorised."""

    async def hang_up(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.close()

    with hostile(hang_up) as server:
        address = f"{server.base_url}/services/T0/planted-in-the-path/?sig=planted-in-the-query"
        configured(approval_webhook_url=address, approval_webhook_secret=SecretStr(SECRET))
        create_execution(request_for("report"))
        assert approval_notices.send_due(seconds=10) == 0
    failed = ApprovalNotice.objects.get()
    assert "POST ***" in failed.error and "planted" not in failed.error + caplog.text


def test_a_webhook_that_does_not_respond_occupies_one_thread_and_does_not_delay_mail(
    guarded: Workflow, approver: User, configured: Any, settings: Any
) -> None:
    """A worker polls and starts runs with the same few threads."""
    received: list[Received] = []
    arrived, end = threading.Event(), threading.Event()

    async def hang(request: Received, writer: asyncio.StreamWriter) -> None:
        received.append(request)
        arrived.set()
        await asyncio.to_thread(end.wait)
        writer.write(response(500))

    with hostile(hang) as server, mail_server() as mail, ThreadPoolExecutor(1) as worker:
        configured(approval_webhook_url=server.base_url, approval_webhook_secret=SecretStr(SECRET))
        use_mail(mail, settings)
        for amount in range(3):
            create_execution(request_for("report", {"amount": amount}))
        first_pass = worker.submit(in_thread, approval_notices.send_due)
        try:
            assert arrived.wait(20)
            assert approval_notices.send_due(seconds=10) == 0, "another thread is sending"
        finally:
            end.set()
        assert first_pass.result(20) == 3
    assert len(received) == 1, "the other two would have waited for the same server"
    assert len(mail.letters) == 3


def test_a_notice_that_is_refused_does_not_hold_up_the_next_ones(
    guarded: Workflow, approver: User, configured: Any
) -> None:
    refused = set[str]()

    async def refuse_the_first(request: Received, writer: asyncio.StreamWriter) -> None:
        refused.add(request.headers["webhook-id"]) if not refused else None
        writer.write(response(400 if request.headers["webhook-id"] in refused else 200))

    with hostile(refuse_the_first) as server:
        configured(approval_webhook_url=server.base_url, approval_webhook_secret=SecretStr(SECRET))
        for amount in range(3):
            create_execution(request_for("report", {"amount": amount}))
        assert approval_notices.send_due(seconds=10) == 0
        assert approval_notices.send_due(seconds=10) == 2
    assert "400" in ApprovalNotice.objects.get(sent_at=None).error


def test_all_notices_are_repeated_soon_once_one_of_them_is_sent_again(
    guarded: Workflow, approver: User, configured: Any
) -> None:
    """After a night, each would otherwise wait for its own time, up to an hour."""
    statuses = iter([500, 500, 500, 200, 200, 200])

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(next(statuses)))

    with hostile(behave) as server:
        configured(approval_webhook_url=server.base_url, approval_webhook_secret=SecretStr(SECRET))
        for _ in range(3):
            create_execution(request_for("report"))
            assert approval_notices.send_due(seconds=10) == 0
        in_an_hour = timezone.now() + timedelta(hours=1)
        ApprovalNotice.objects.update(attempts=12, next_attempt_at=in_an_hour)
        ApprovalNotice.objects.filter(pk=ApprovalNotice.objects.earliest("pk").pk).update(
            next_attempt_at=timezone.now()
        )
        assert approval_notices.send_due(seconds=10) == 1
        assert approval_notices.send_due(seconds=10) == 2


def test_the_log_says_once_that_notices_fail_and_when_they_are_sent_or_given_up(
    guarded: Workflow, approver: User, configured: Any
) -> None:
    statuses = iter([500, 500, 500, 200])

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(next(statuses)))

    with hostile(behave) as server, shown_lines() as lines:
        configured(approval_webhook_url=server.base_url, approval_webhook_secret=SecretStr(SECRET))
        for _ in range(2):
            create_execution(request_for("report"))
        for _ in range(2):
            approval_notices.send_due(seconds=10)
        make_due()
        long_ago = timezone.now() - approval_notices.GIVE_UP_AFTER
        oldest = ApprovalNotice.objects.filter(pk=ApprovalNotice.objects.earliest("pk").pk)
        oldest.update(created_at=long_ago, next_attempt_at=long_ago)
        for _ in range(2):
            approval_notices.send_due(seconds=10)
    notice, why = "approval requested by webhook", "The webhook answered with 500."
    assert lines == [
        f"{notice} was not sent, and is repeated: {why}",
        f"{notice} was not sent, and is given up: {why}",
        f"{notice} was sent at attempt 2",
    ]


class MailServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        self.letters: list[tuple[list[str], str]] = []
        self.is_busy = False
        super().__init__(("127.0.0.1", 0), Conversation)


class Conversation(socketserver.StreamRequestHandler):
    """As much of SMTP as a client needs."""

    server: MailServer

    def handle(self) -> None:
        self._say("220 here")
        people: list[str] = []
        for line in self.rfile:
            verb = line.decode().strip()
            if verb.upper().startswith("RCPT"):
                people.append(verb)
            if verb.upper() == "DATA" and not self.server.is_busy:
                self._say("354 go on")
                letter = b"".join(iter(self.rfile.readline, b".\r\n")).decode()
                self.server.letters.append((people, letter))
            if verb.upper() == "QUIT":
                self._say("221 bye")
                return
            self._say("451 busy" if verb.upper() == "DATA" and self.server.is_busy else "250 ok")

    def _say(self, words: str) -> None:
        self.wfile.write(f"{words}\r\n".encode())


@contextmanager
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def use_mail(server: MailServer, settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = server.server_address[:2]
    settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False


def in_thread(send_due: Callable[..., int]) -> int:
    """Closes the thread's connection to the database."""
    try:
        return send_due(seconds=10)
    finally:
        connections.close_all()


def test_approvers_get_a_letter_even_if_the_mail_server_was_busy(
    guarded: Workflow, approver: User, settings: Any
) -> None:
    User.objects.create_user("eve", "eve@example.com", is_staff=True)
    with mail_server() as server:
        use_mail(server, settings)
        create_execution(request_for("report", {"amount": 7}))
        server.is_busy = True
        assert approval_notices.send_due(seconds=10) == 0
        server.is_busy = False
        make_due()
        assert approval_notices.send_due(seconds=10) == 1
    ((people, letter),) = server.letters
    assert "anna@example.com" in "".join(people)
    assert "eve@example.com" not in "".join(people) + letter
    assert "anna@example.com" not in letter
    assert '"amount": 7' in letter


def test_nothing_is_written_where_nothing_is_to_be_sent(guarded: Workflow) -> None:
    create_execution(request_for("report", {"amount": 7}))
    assert not ApprovalNotice.objects.exists()
