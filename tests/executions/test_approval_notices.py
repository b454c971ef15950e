"""Notices of approvals: a webhook and a mail server on the wire, which may fail."""

import asyncio
import base64
import hashlib
import hmac
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone
from pydantic import SecretStr

from catalogue.curation import override_workflow
from catalogue.models import Workflow
from executions import approval_notices
from executions.approvals import decide
from executions.models import ApprovalNotice
from executions.starting import create_execution
from tests.connectors.scripted import Received, response
from tests.engines.hostile_servers import hostile
from tests.executions.steps import request_for

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


def test_the_path_of_a_webhook_is_neither_recorded_nor_logged(
    guarded: Workflow, approver: User, configured: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Services such as chats take whoever knows it for authorised."""

    async def hang_up(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.close()

    with hostile(hang_up) as server:
        address = f"{server.base_url}/services/T0/planted-in-the-path/"
        configured(approval_webhook_url=address, approval_webhook_secret=SecretStr(SECRET))
        create_execution(request_for("report"))
        assert approval_notices.send_due(seconds=10) == 0
    failed = ApprovalNotice.objects.get()
    assert "POST ***" in failed.error and "planted" not in failed.error + caplog.text


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


def test_approvers_get_a_letter_even_if_the_mail_server_was_busy(
    guarded: Workflow, approver: User, settings: Any
) -> None:
    User.objects.create_user("eve", "eve@example.com", is_staff=True)
    with mail_server() as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = server.server_address
        settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False
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
