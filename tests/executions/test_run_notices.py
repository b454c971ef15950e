"""Whoever a call names is notified of its run: at least once, signed, and only where the policy allows."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core import mail
from django.utils import timezone

from catalogue.actions.workflows import override_workflow
from connectors.background import run_in_background_loop
from executions import notices, run_notices, subscriptions
from executions.approvals import decide
from executions.models import Execution, Retention, RunNotice, State
from executions.models.lifecycle import StartRequest
from executions.refusals import UnusableNotice
from executions.retention import prune
from executions.run_notices import read_notices
from executions.starting import create_execution
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.connectors.scripted import ScriptedEngine, replies, sends
from tests.engines.hostile_servers import hostile
from tests.executions.caching import at_once, cache_for
from tests.executions.engines import in_turn
from tests.executions.steps import ALICE, call, read, request_for, timeline, told
from tests.threads import together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.run_notices", "executions.models.subscription"),
]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
send_due = partial(run_notices.send_due, seconds=10)


@pytest.fixture(autouse=True)
def this_machine() -> Iterator[None]:
    with http_tool_hosts("127.0.0.1"):
        yield


@pytest.fixture
def receive() -> Iterator[Callable[..., ScriptedEngine]]:
    """Has a receiver behave so in turn, the last way from then on."""
    with ExitStack() as servers:
        yield lambda *ways: servers.enter_context(hostile(in_turn(*(ways or [replies(200)]))))


@pytest.fixture
def ada(settings) -> User:
    settings.EMAIL_HOST = "127.0.0.1"
    mail.outbox.clear()
    return User.objects.create_user("ada", "ada@example.com")


def asking(asked: Any, **fields: Any) -> StartRequest:
    caller = fields.pop("caller", ALICE)
    return request_for("report", caller=caller, notices=read_notices(asked, caller), **fields)


def ask(asked: Any, **fields: Any) -> Execution:
    """As REST records a call."""
    return create_execution(asking(asked, **fields))


def move(execution: Execution, state: State, **fields: Any) -> None:
    """As a step records it."""
    if state in (State.COMPLETED, State.FAILED, State.TIMED_OUT, State.CANCELLED):
        fields = {"finished_at": timezone.now()} | fields
    Execution.objects.filter(pk=execution.pk).update(state=state, **fields)


def make_due() -> None:
    RunNotice.objects.update(next_attempt_at=timezone.now())


def bodies(server: ScriptedEngine) -> list[Any]:
    return [json.loads(request.body) for request in server.received]


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMED_OUT])
def test_a_signed_webhook_tells_how_a_run_ended_once(workflow, receive, state):
    server = receive()
    execution = ask({"webhook": server.base_url + "/hook?sig=planted", "secret": SECRET})
    assert send_due() == 0, "it has not ended"
    failed = {} if state == State.COMPLETED else {"error": "No such card.", "error_kind": "execution"}
    move(execution, state, **failed)
    assert [send_due(), send_due()] == [1, 0]
    (request,) = server.received
    headers, body = request.headers, json.loads(request.body)
    assert request.target == "/hook?sig=planted"
    assert headers["webhook-signature"] == notices.sign(
        SECRET,
        message_id=headers["webhook-id"],
        timestamp=int(headers["webhook-timestamp"]),
        body=request.body,
    )
    data = body["data"]
    assert (body["type"], data["execution_id"], data["state"]) == ("run.ended", str(execution.pk), state)
    assert (data["tool"], data["caller"], bool(data["error"])) == ("report", "Alice", bool(failed))
    assert data["url"].endswith(f"/{execution.pk}/change/")
    assert told(execution, "notice_sent") == [f"Told 127.0.0.1 by webhook: {state}."]
    assert RunNotice.objects.get().encrypted_target == "", "nothing secret is kept longer than needed"


def test_a_run_at_an_engine_is_told_with_its_result_nowhere_in_the_message(engine, workflow, receive):
    server, engine.on_start = receive(), at_once({"salary": "planted"})
    notices_ = read_notices({"webhook": server.base_url}, ALICE)
    execution = run_in_background_loop(call("report", request={"notices": notices_}))
    assert execution.succeeded and send_due() == 1
    assert "planted" not in server.received[0].body.decode()
    assert "webhook-signature" not in server.received[0].headers, "there is no secret"


def test_the_user_of_the_caller_gets_a_letter_at_their_own_address_alone(workflow, ada):
    caller = replace(ALICE, user_id=ada.pk)
    execution = ask({"email": True}, caller=caller)
    move(execution, State.FAILED, error="No\r\nsuch card.\x1b[31m")
    assert send_due() == 1
    (letter,) = mail.outbox
    assert letter.bcc == ["ada@example.com"] and f"/{execution.pk}/" in letter.body
    assert "report" in letter.subject and "\x1b" not in letter.body
    for email, other in ((True, ALICE), (True, replace(ALICE, user_id=0)), ("eve@example.com", caller)):
        with pytest.raises(UnusableNotice):
            ask({"email": email}, caller=other)


@pytest.mark.parametrize(("format", "member"), [("slack", "blocks"), ("teams", "attachments")])
def test_chats_get_a_message_in_their_format(workflow, receive, format, member):
    server = receive()
    move(ask({"webhook": server.base_url, "format": format}), State.FAILED, error="<!channel> [x](y)")
    assert send_due() == 1
    (body,) = bodies(server)
    assert (body[member] and "<!channel>" not in json.dumps(body)) or format == "teams"


def test_a_disabled_user_is_not_told(workflow, receive, ada):
    server = receive()
    move(ask({"webhook": server.base_url}, caller=replace(ALICE, user_id=ada.pk)), State.COMPLETED)
    User.objects.update(is_active=False)
    assert send_due() == 0 and server.received == []


# What is asked, and where to


@pytest.mark.parametrize(
    "asked",
    [
        {},
        [],
        "https://example.com",
        {"webhook": ""},
        {"webhook": 5},
        {"webhook": "https://example.com/" + "x" * 2_000},
        {"webhook": "https://example.com", "secret": "short"},
        {"webhook": "https://example.com", "secret": "whsec_!"},
        {"webhook": "https://example.com", "secret": "whsec_" + "x" * 200},
        {"webhook": "https://example.com", "format": "email"},
        {"webhook": "https://example.com", "format": ["slack"]},
        {"webhook": "https://example.com", "to": "eve@example.com"},
        {"email": "eve@example.com"},
        {"email": 1},
        {"webhook": "ftp://example.com"},
        {"webhook": "https://ada:pw@example.com"},
        {"webhook": "http://169.254.169.254/latest"},
        {"webhook": "http://[fe80::1]/"},
        {"webhook": "http://10.0.0.7/"},
        {"webhook": "http://192.168.1.1/"},
        {"webhook": "http://127.0.0.2/"},
        {"webhook": "http://[::1]/"},
        {"webhook": "http://0x7f000002/"},
        {"webhook": "http://[::ffff:10.0.0.7]/"},
        {"webhook": "http://0.0.0.0/"},
        {"webhook": "http://224.0.0.1/"},
    ],
    ids=str,
)
def test_what_cannot_be_notified_is_refused_before_anything_starts(workflow, asked):
    with pytest.raises(UnusableNotice, match="Nothing was started"):
        ask(asked)
    assert not Execution.objects.exists()


@pytest.fixture
def name_of(monkeypatch) -> Callable[[str], None]:
    """Has every name be of this address from now on."""

    def point(address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        found = [(family, socket.SOCK_STREAM, 6, "", (address, 80))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)

    return point


@pytest.mark.parametrize("address", ["10.0.0.7", "127.0.0.2", "169.254.169.254", "fd00:ec2::254"])
def test_a_name_of_a_forbidden_address_is_refused_at_the_call_and_when_it_is_sent(workflow, name_of, address):
    name_of(address)
    with pytest.raises(UnusableNotice):
        ask({"webhook": "http://hooks.example.com/"})
    name_of("93.184.215.14")
    execution = ask({"webhook": "http://hooks.example.com/"})
    name_of(address)
    move(execution, State.COMPLETED)
    assert send_due() == 0
    assert "not contacted" in RunNotice.objects.get().error


def test_a_redirect_is_not_followed(workflow, receive):
    server = receive(sends(b"HTTP/1.1 307 Moved\r\nlocation: /planted\r\ncontent-length: 0\r\n\r\n"))
    move(ask({"webhook": server.base_url}), State.COMPLETED)
    assert send_due() == 0 and len(server.received) == 1
    assert "307" in RunNotice.objects.get().error


# At least once, with an end


def test_what_fails_is_repeated_with_the_same_id_and_ends_after_three_days(workflow, receive):
    server = receive(replies(500), replies(500))
    execution = ask({"webhook": server.base_url + "/planted", "secret": SECRET})
    # It ran for longer than a message is repeated.
    RunNotice.objects.update(created_at=timezone.now() - timedelta(days=10))
    move(execution, State.COMPLETED)
    assert [send_due(), send_due()] == [0, 0], "the next attempt is later"
    make_due()
    send_due()
    assert len({request.headers["webhook-id"] for request in server.received}) == 1
    assert "notice_given_up" not in timeline(execution)
    RunNotice.objects.update(created_at=timezone.now() - notices.GIVE_UP_AFTER)
    make_due()
    send_due()
    (line,) = told(execution, "notice_given_up")
    assert "500" in line and "planted" not in line
    make_due()
    assert send_due() == 0 and len(server.received) == 3
    assert RunNotice.objects.get().encrypted_target == ""


def test_a_receiver_that_is_gone_is_not_asked_again(workflow, receive):
    server = receive(replies(410))
    execution = ask({"webhook": server.base_url})
    move(execution, State.COMPLETED)
    send_due()
    make_due()
    send_due()
    assert len(server.received) == 1 and "notice_given_up" in timeline(execution)


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.parametrize("where", ["before it is sent", "after it was sent"])
def test_a_process_that_ends_while_sending_loses_nothing(workflow, receive, monkeypatch, where):
    server = receive()
    execution = ask({"webhook": server.base_url, "secret": SECRET})
    move(execution, State.COMPLETED)

    def end(*_args: Any, **_options: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if where.startswith("before"):
            patched.setattr(notices, "post", end)
        else:
            patched.setattr(Execution, "note", end)
        with pytest.raises(Killed):
            send_due()
    assert send_due() == 0, "another worker may be sending it"
    make_due()
    assert [send_due(), send_due()] == [1, 0]
    ids = [request.headers["webhook-id"] for request in server.received]
    assert len(ids) == (1 if where.startswith("before") else 2) and len(set(ids)) == 1
    assert timeline(execution).count("notice_sent") == 1


def test_several_workers_send_it_once(workflow, receive):
    server = receive()
    move(ask({"webhook": server.base_url}), State.COMPLETED)

    def work() -> int:
        return notices.send_all(run_notices._destinations, seconds=10, turn=Lock())

    assert sum(together(work, work, work)) == 1
    assert len(server.received) == 1


def test_receivers_that_failed_wait_for_those_that_were_not_asked_yet(workflow):
    for host in ("a", "b", "c"):
        move(ask({"webhook": f"http://127.0.0.1/{host}"}), State.COMPLETED)
    for row, (host, tries) in zip(RunNotice.objects.all(), [("a", 9), ("b", 0), ("c", 1)], strict=True):
        row.receiver, row.attempts = host, tries
        row.save()
    assert [destination.name for destination in run_notices._destinations()] == ["b", "c", "a"]


# Which states


@pytest.fixture
def approver(workflow) -> User:
    override_workflow(workflow, approval_required=True)
    user = User.objects.create_user("anna", "anna@example.com", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    return User.objects.get(pk=user.pk)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("approve", ["run.unapproved", "run.approved", "run.ended"]),
        ("refuse", ["run.unapproved", "run.ended"]),
    ],
)
def test_an_approval_is_told_as_it_is_awaited_and_decided(approver, receive, verdict, expected):
    server = receive()
    execution = ask({"webhook": server.base_url, "secret": SECRET})
    assert [send_due(), send_due()] == [1, 0]
    decide(execution.pk, user=approver, verdict=verdict, words="Because.")
    assert [send_due(), send_due()] == [1, 0]
    if verdict == "approve":
        move(execution, State.RUNNING)
        assert send_due() == 0
        move(execution, State.COMPLETED)
        assert send_due() == 1
    assert [body["type"] for body in bodies(server)] == expected
    assert len({request.headers["webhook-id"] for request in server.received}) == len(expected)


def test_what_changes_while_a_receiver_is_away_is_told_as_it_is_then(approver, receive):
    server = receive(replies(503), replies(200))
    execution = ask({"webhook": server.base_url})
    assert send_due() == 0
    move(execution, State.COMPLETED)
    make_due()
    assert [send_due(), send_due()] == [1, 0]
    assert bodies(server)[-1]["data"]["state"] == "completed"


def test_an_unconfirmed_run_is_told_and_again_once_it_is_resolved(workflow, receive):
    server = receive()
    execution = ask({"webhook": server.base_url})
    move(execution, State.UNCONFIRMED)
    assert [send_due(), send_due()] == [1, 0]
    assert read(execution).confirm_not_started(by="admin")
    assert [send_due(), send_due()] == [1, 0]
    assert [body["type"] for body in bodies(server)] == ["run.unconfirmed", "run.ended"]


# Calls that start nothing


def test_a_result_from_the_cache_is_told_too(engine, workflow, receive):
    server, engine.on_start = receive(), at_once({"a": 1})
    cache_for(workflow)
    run_in_background_loop(call("report"))
    execution = ask({"webhook": server.base_url})
    assert execution.cached_at is not None
    assert send_due() == 1 and bodies(server)[0]["data"]["execution_id"] == str(execution.pk)


def test_a_repeated_call_is_told_once_and_may_add_what_the_first_did_not_ask(workflow, receive):
    server = receive()
    execution = create_execution(request_for("report", idempotency_key="k"))
    for _ in range(3):
        assert ask({"webhook": server.base_url}, idempotency_key="k") == execution
    move(execution, State.COMPLETED)
    assert [send_due(), send_due()] == [1, 0]
    assert ask({"webhook": server.base_url}, idempotency_key="k") == execution
    assert send_due() == 0


def test_concurrent_calls_with_one_key_are_told_once(workflow, receive):
    server = receive()
    together(*[partial(ask, {"webhook": server.base_url}, idempotency_key="k")] * 3)
    move(Execution.objects.get(), State.COMPLETED)
    assert send_due() == 1 and len(server.received) == 1


# What is kept


def test_targets_survive_another_secret_key(workflow, settings):
    ask({"webhook": "http://127.0.0.1/planted"})
    assert "planted" not in RunNotice.objects.get().encrypted_target
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "n" * 60
    subscriptions.reencrypt_targets()
    settings.SECRET_KEY_FALLBACKS = []
    assert RunNotice.objects.get().target["address"] == "http://127.0.0.1/planted"


def test_notices_go_with_their_execution(workflow):
    Retention.objects.create(keep_records_days=0)
    ended = timezone.now() - timedelta(days=1)
    move(ask({"webhook": "http://127.0.0.1/"}), State.COMPLETED, finished_at=ended)
    prune()
    assert not RunNotice.objects.exists() and not Execution.objects.exists()
