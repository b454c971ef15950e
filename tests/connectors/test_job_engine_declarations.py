"""What can be wrong with the declaration of an engine, and what a declared engine may reach and answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import jsonschema_rs
import pytest
from pydantic import ValidationError

from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
)
from connectors.formats.yaml import UnusableText, read_document
from connectors.http_job.connector import HttpJobConnector
from connectors.http_job.declaration import json_schema, read_declaration
from connectors.http_job.engine import PRESETS, HttpJobConfig, preset_text
from connectors.http_job.trial import describe_requests
from connectors.protocol import Capabilities, RunRef, RunState, WorkflowRef
from connectors.testing import closing
from tests.connectors.job_engines import Argo, Awx, Jenkins, JobEngine, serving
from tests.connectors.scripted import Behaviour, Received, ScriptedEngine, replies, response, routes

SMALLEST = """
name: Tea
list: {get: /jobs, items: "@", id: id}
start: {post: "/jobs/{id}/runs", json: "{arguments}", run_id: id}
status:
  get: /runs/{run_id}
  state: state
  states: {going: running, done: completed, broken: failed}
"""
START = '{post: "/jobs/{id}/runs", json: "{arguments}", run_id: id}'
JOB = WorkflowRef(id="brew", name="brew")
NOWHERE = "https://elsewhere.example.com/jobs?page=2"


def with_line(line: str, *, instead_of: str = "") -> str:
    return SMALLEST.replace(instead_of, line) if instead_of else f"{SMALLEST}{line}\n"


def reasons(text: str) -> str:
    with pytest.raises(UnusableText) as caught:
        read_declaration(text)
    return str(caught.value)


ASKING = """
questions:
  when: state == 'waiting'
  get: /runs/{run_id}/approvals
  items: open
  id: id
  message: text
  url: page
  until: until
  schema: schema
  inputs: {each: fields, type: type, types: {int: integer}, required: needed}
  keep: {approval: id}
  answer:
    post: /approvals/{approval}
    keep: {verdicts: "[verdict][]"}
    json: {verdicts: "{verdicts}", fields: "{inputs}", all: "{arguments}"}
    gone: 409
"""
MISTAKES_ON_LINE_9 = {
    "questions without an answer": (
        "questions: {get: /q, items: open, id: id}",
        "questions.answer: required, but missing",
    ),
    "a value of a question in the request for it": (
        "questions: {get: '/q/{approval}', items: open, id: id, keep: {approval: id}, answer: {post: /a}}",
        "questions.get: unknown placeholder {approval}",
    ),
    "a name that the answer has": (
        "questions: {get: /q, items: open, id: id, keep: {inputs: id}, answer: {post: /a}}",
        "questions.keep.inputs: is a reserved name",
    ),
    "an unknown key": ("cancle: {post: /x}", "cancle: unknown key; did you mean cancel?"),
    "an unknown key inside": (
        "result: {get: /x, outputt: a}",
        "result.outputt: unknown key; did you mean output?",
    ),
    "no method": ("cancel: {json: {}}", "cancel: must have exactly one of get, post"),
    "two methods": ("cancel: {post: /x, put: /y}", "cancel: must have exactly one of"),
    "a body of a get": ("check: {get: /x, json: {}}", "check: a get request cannot have a body"),
    "an address": (
        "cancel: {post: https://elsewhere.example.com/x}",
        "cancel.post: must be a path relative to the source's address",
    ),
    "an unknown placeholder": (
        "cancel: {post: '/runs/{run}'}",
        "cancel.post: unknown placeholder {run}; known placeholders: {id}, {key}, {name}, {run_id}",
    ),
    "a secret outside the login": (
        "cancel: {post: '/runs/{run_id}', json: {a: '{password}'}}",
        "cancel.json: {password} can only be used in the login",
    ),
    "a secret in the document": (
        "login: {headers: {X-Key: my-own-secret}}",
        "login: headers.X-Key: must contain {token}",
    ),
    "two logins": ("login: {basic: true, oauth: true}", "login: must have only one of"),
    "no expression": ("logs: {get: /x, output: 'a['}", "logs.output: is not a valid JMESPath"),
    "a header of the product's": (
        "headers: {Host: elsewhere.example.com}",
        "headers: the header Host is a header that only the product sets",
    ),
    "a header that splits": ('headers: {X-A: "a\\r\\nHost: b"}', "headers: the value of X-A"),
    "a lookup that trusts": (
        "find: {get: '/runs?key={key}', runs: runs, run_id: id}",
        "find: runs requires key",
    ),
    "a lookup among runs without the key": (
        "find: {get: /runs, one: {of: runs, where: key, equals: '{id}'}, run_id: id}",
        "find.one.equals: unknown placeholder {id}; known placeholders: {key}",
    ),
    "a lookup of no key": (
        "find: {get: /runs, one: {of: runs, where: key, equals: x}, run_id: id}",
        "find.one.equals: must contain {key}",
    ),
    "two ways to look a run up": (
        "find: {get: /runs, runs: r, key: k, one: {of: r, where: k, equals: '{key}'}, run_id: i}",
        "find: one cannot be combined with runs and key",
    ),
    "a value with another's name": ("values: {key: x}", "values.key: is a reserved name"),
    "members for arguments where there are none": (
        """cancel: {post: /x, json: {"{argument.name}": "{argument.value}"}}""",
        "cancel.json: unknown placeholder {argument.name}",
    ),
    "half a count": ("progress: {get: /x, done: a}", "progress: done and total must be set together"),
    "a webhook that anybody could call": (
        "webhook: {run_id: run.id}",
        "webhook: must have one of signature and secret",
    ),
    "a webhook that names no run": ("webhook: {signature: github}", "webhook.run_id: required, but missing"),
    "an unknown kind of signature": (
        "webhook: {signature: gitlab, run_id: id}",
        "webhook.signature: must be one of github, standard, stripe, or a mapping with a header",
    ),
    "a signature without a header": (
        "webhook: {signature: {prefix: 'v1='}, run_id: id}",
        "webhook.signature.header: required, but missing",
    ),
    "a header that is none": (
        "webhook: {signature: {header: 'X Sig'}, run_id: id}",
        "webhook.signature.header: is not a valid header name",
    ),
    "a signature of nothing": (
        "webhook: {signature: {header: X-Sig, signs: now}, run_id: id}",
        "webhook.signature: signs: must contain {body}; unsigned data proves nothing",
    ),
    "a time that anybody could write": (
        "webhook: {signature: {header: X-Sig, timestamp: X-Time}, run_id: id}",
        "webhook.signature: signs: must contain {timestamp}; unsigned data proves nothing",
    ),
    "two times": (
        "webhook: {signature: {header: X-Sig, signs: '{timestamp}{body}', timestamp: X-T, "
        "timestamp_prefix: t=}, run_id: id}",
        "webhook.signature: must have only one of timestamp and timestamp_prefix",
    ),
    "something unknown that is signed": (
        "webhook: {signature: {header: X-Sig, signs: '{body}{token}'}, run_id: id}",
        "webhook.signature: signs: unknown placeholder {token}",
    ),
    "a webhook's unknown key": (
        "webhook: {signature: {headr: X-Sig}, run_id: id}",
        "webhook.signature.headr: unknown key; did you mean header?",
    ),
    "a webhook's expression": (
        "webhook: {signature: github, run_id: 'a['}",
        "webhook.run_id: is not a valid JMESPath expression",
    ),
    "a pause without an end": (
        "pause: {post: '/runs/{run_id}/pause'}",
        "pause: pause and resume must be declared together",
    ),
    "a retry that cannot be looked up": (
        "retry: {post: '/runs/{run_id}/retry', find: {get: '/runs/{key}', run_id: id}}",
        "retry: must send {key} if it declares a guarantee for it",
    ),
    "a lookup that finds any retry": (
        "retry: {post: '/runs/{run_id}/{key}', find: {get: /runs, run_id: id, one: {of: runs, where: of, "
        "equals: '{run_id}'}}}",
        "retry.find.one.equals: unknown placeholder {run_id}; known placeholders: {key}",
    ),
    "a duplicate key": ("name: Coffee", "name: the key occurs twice; first on line 2"),
    "a wrong type": ("values: [a, b]", "values: must be a mapping"),
    "a number for a text": ("about: 5", "about: must be a string"),
}
"""Further lines of the smallest declaration, and the problem that each has."""
MISTAKES = {
    "a path to another host": (with_line("cancel: {post: //elsewhere/x}"), "begins with a single '/'"),
    "a step up": (with_line("cancel: {post: /a/../admin}"), "must not contain the segments '.' or '..'"),
    "an endless expression": (
        with_line(f"logs: {{get: /x, output: '{'a.' * 2000}b'}}"),
        "line 9, logs.output: must have at most 2,000 characters",
    ),
    "an expression nested too deep": (
        with_line(f"logs: {{get: /x, output: '{'(' * 900}a{')' * 900}'}}"),
        "line 9, logs.output: is not a valid JMESPath expression",
    ),
    "an unknown state": (
        with_line("{done: finished}", instead_of="{going: running, done: completed, broken: failed}"),
        "line 8, status.states.done: must be 'running', 'paused', 'completed', 'failed' or 'cancelled'",
    ),
    "no states": (
        with_line("states: {}", instead_of="states: {going: running, done: completed, broken: failed}"),
        "line 8, status.states: must not be empty",
    ),
    "a pause that no state shows": (
        with_line("pause: {post: '/runs/{run_id}/pause'}\nresume: {post: '/runs/{run_id}/go'}"),
        "line 8, status.states: must map a state to paused, because pause is declared",
    ),
    "a missing part": ("name: Tea\n", "line 1, list: required, but missing"),
    "a page that never turns": (
        with_line(
            "{get: /jobs, items: a, id: id, pages: {by: offset}}",
            instead_of='{get: /jobs, items: "@", id: id}',
        ),
        "line 3, list.pages: the request must contain {offset}",
    ),
    "a promise without a key": (
        with_line("one_run_per_key: true, run_id: id", instead_of="run_id: id"),
        "line 4, start: must send {key} if it declares a guarantee for it",
    ),
    "an argument's name outside a list": (
        with_line("{post: /jobs, json: {a: '{argument.name}'}, run_id: id}", instead_of=START),
        "line 4, start.json: {argument.name} can only be an item of a list, or a key",
    ),
    "a time limit that is none": (
        with_line(
            '{get: /jobs, items: "@", id: id, timeout_seconds: 0}',
            instead_of='{get: /jobs, items: "@", id: id}',
        ),
        "line 3, list.timeout_seconds: must be",
    ),
    "a start that names no run": (
        with_line("{post: /jobs}", instead_of=START),
        "line 4, start: must have one of run_id and location",
    ),
    "a location without a run": (
        with_line("{post: /jobs, location: /queue/}", instead_of=START),
        "line 4, start.location: ",
    ),
    "a repetition that a location cannot confirm": (
        with_line(
            "{post: '/jobs/{key}', location: '/q/{run_id}', own_run_id: '{key}', already_started: 409}",
            instead_of=START,
        ),
        "line 4, start: already_started requires run_id",
    ),
    "a value that is not looked at": (
        with_line("cancel: {post: '/runs/{build}'}").replace(
            "state: state", "state: state\n  keep: {build: id}"
        ),
        "unknown placeholder {build}",
    ),
    "a time from nowhere": (
        with_line("webhook: {signature: {header: X-Sig, signs: '{timestamp}.{body}'}, run_id: id}"),
        "timestamp: required, because {timestamp} is signed",
    ),
    "a tag": (with_line("about: !!python/object/apply:os.system [id]"), "tags such as '!' are not supported"),
    "a list": ("- a\n", "line 1: must be a mapping of keys and values"),
    "nothing": ("", "line 1: the document is empty"),
    "no YAML": ("name: [\n", "is never closed"),
    "depth": (f"a: {'[' * 60}{']' * 60}\n", "nested deeper than 20 levels"),
    "size": ("#" * 200_001, "larger than the maximum of 200,000 bytes"),
}
BILLION = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(("text", "reason"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_with_its_line_and_key(text, reason):
    """B4, B6: so that its author finds it."""
    assert reason in reasons(text)


@pytest.mark.parametrize(("line", "reason"), MISTAKES_ON_LINE_9.values(), ids=MISTAKES_ON_LINE_9)
def test_a_mistake_in_a_further_line_is_named_with_its_line_and_key(line, reason):
    """B4, B6: so that its author finds it."""
    assert f"line 9, {reason}" in reasons(with_line(line))


def test_a_billion_laughs_are_refused_at_once():
    """B6: a short text that stands for very many values."""
    assert "more than 5,000 values" in reasons(BILLION)


def test_every_mistake_is_named_at_once():
    """B4: not one at each attempt."""
    text = with_line("cancel: {post: '/runs/{run}'}\nlogs: {get: '/{nothing}'}")
    assert reasons(text).count("unknown placeholder") == 2


def test_the_form_shows_the_mistakes_of_a_declaration():
    """B4: as an error of that field."""
    with pytest.raises(ValidationError) as caught:
        HttpJobConfig(base_url="https://tea.example.com", declaration=with_line("cancle: {}"))
    (problem,) = caught.value.errors()
    assert problem["loc"] == ("declaration",)
    assert "line 9, cancle: unknown key; did you mean cancel?" in problem["msg"]


@pytest.mark.parametrize("preset", PRESETS)
def test_what_ships_fits_the_published_schema_and_can_be_shown(preset):
    """B10: editors accept it, and the dry run shows each request without a secret."""
    text = preset_text(preset)
    validator = jsonschema_rs.validator_for(json_schema())
    assert not [*validator.iter_errors(read_document(text.encode()).value)]
    shown = "\n".join(describe_requests(read_declaration(text), {"cups": 2}))
    assert any(written in shown for written in ('"cups": 2', "cups=2"))
    knows_no_key = preset in ("awx", "github_actions", "jenkins", "n8n")
    assert ("00000000-0000-4000-8000-000000000000" in shown) != knows_no_key


def test_the_published_schema_refuses_what_the_product_refuses():
    """B10: an editor that says nothing says that it is right."""
    validator = jsonschema_rs.validator_for(json_schema())
    assert validator.is_valid(read_document(SMALLEST.encode()).value)
    assert not validator.is_valid(read_document(with_line("cancle: {post: /x}").encode()).value)
    assert not validator.is_valid({"name": "Tea"})


def test_capabilities_follow_from_what_is_declared():
    """B10: what is not declared is not promised."""
    more = """
find: {get: "/runs?key={key}", run_id: id}
cancel: {delete: "/runs/{run_id}"}
terminate: {delete: "/runs/{run_id}?force=true", after_seconds: 5}
"""
    keyed = SMALLEST.replace(
        'json: "{arguments}"', 'json: {key: "{key}"}, own_run_id: "{key}", already_started: 409'
    )
    assert made(SMALLEST).capabilities == Capabilities(min_poll_seconds=2.0)
    assert made(keyed + more).capabilities == Capabilities(
        idempotent_start=True,
        can_find_runs=True,
        can_cancel=True,
        terminates_after_seconds=5.0,
        can_terminate=True,
        min_poll_seconds=2.0,
    )
    again = "retry: {post: '/runs/{run_id}/retry?key={key}'"
    held = 'pause: {put: "/runs/{run_id}/pause"}\nresume: {delete: "/runs/{run_id}/pause"}'
    holding = SMALLEST.replace("{going: running,", "{going: running, held: paused,")
    assert made(f"{SMALLEST}{again}}}").capabilities == Capabilities(can_retry=True, min_poll_seconds=2.0)
    lookup = "find: {get: '/runs?retry={key}', run_id: id}"
    assert made(f"{holding}{again}, one_run_per_key: true, {lookup}}}\n{held}").capabilities == Capabilities(
        can_retry=True,
        idempotent_retry=True,
        can_find_retries=True,
        can_pause=True,
        min_poll_seconds=2.0,
    )


def made(declaration: str, base_url: str = "http://127.0.0.1:9", **settings: Any) -> HttpJobConnector:
    given = {"base_url": base_url, "declaration": declaration, "request_timeout_seconds": 5.0}
    return HttpJobConnector(HttpJobConfig.model_validate(given | settings))


@asynccontextmanager
async def declared(
    declaration: str, behaviour: Behaviour, **settings: Any
) -> AsyncIterator[tuple[HttpJobConnector, ScriptedEngine]]:
    async with (
        ScriptedEngine(behaviour) as engine,
        closing(made(declaration, engine.base_url, **settings)) as connector,
    ):
        yield connector, engine


def run_of(run_id: str) -> RunRef:
    return RunRef(workflow=JOB, run_id=run_id, key=uuid4())


async def listed(connector: HttpJobConnector) -> list[WorkflowDefinition | RejectedDefinition]:
    return [item async for item in connector.discover()]


# What is sent


async def test_values_are_escaped_by_their_place_and_keep_their_type():
    """E6: an argument is a value wherever it goes, never a part of the request."""
    start = """{post: "/jobs/{arguments.name}/runs?tag={arguments.tag}", run_id: id,
      query: {limit: "{arguments.n}", gone: "{arguments.gone}"}, headers: {X-Who: "{arguments.name}"},
      json: {whole: "{arguments}", n: "{arguments.n}", text: "n={arguments.n}", gone: "{arguments.gone}",
             brace: "{{literal}}"}}"""
    text = SMALLEST.replace('{post: "/jobs/{id}/runs", json: "{arguments}", run_id: id}', start)
    arguments = {"name": "a/b?c", "tag": "x&y=z", "n": 5}
    async with declared(text, replies(200, {"id": "7"})) as (connector, engine):
        await connector.start(JOB, arguments, key=uuid4())
    (sent,) = engine.received
    assert sent.target == "/jobs/a%2Fb%3Fc/runs?tag=x%26y%3Dz&limit=5"
    assert sent.headers["x-who"] == "a/b?c"
    assert sent.json == {"whole": arguments, "n": 5, "text": "n=5", "brace": "{literal}"}


async def test_arguments_stand_beside_values_of_the_declaration():
    """B10: a member whose key is {argument.name} stands for one for each argument; what is written after it
    wins, so that no argument takes the place of the key."""
    members = '{"{argument.name}": "{argument.value}", reason: "{key}"}'
    start = f"{{post: /runs, json: {{params: {members}, all: [{members}]}}, query: {members}, run_id: id}}"
    key = uuid4()
    async with declared(SMALLEST.replace(START, start), replies(200, {"id": "7"})) as (connector, engine):
        await connector.start(JOB, {"cups": 2, "reason": "mine"}, key=key)
    (sent,) = engine.received
    expected = {"cups": 2, "reason": str(key)}
    assert sent.json == {"params": expected, "all": [expected]}
    assert sent.target == f"/runs?cups=2&reason={key}"


@pytest.mark.parametrize("name", ["..", ".", "", "a\\b", "a\nb", ["a"], None])
async def test_a_value_that_would_lead_elsewhere_is_not_sent(name):
    """E6: not even percent-encoded."""
    text = SMALLEST.replace("/jobs/{id}/runs", "/jobs/{arguments.name}/runs")
    async with declared(text, replies(200, {"id": "7"})) as (connector, engine):
        with pytest.raises(Rejected, match=r"Nothing was sent\."):
            await connector.start(JOB, {"name": name}, key=uuid4())
    assert not engine.received


async def test_a_header_cannot_be_split_by_an_argument():
    """E6: what HTTP does not allow there is refused."""
    text = SMALLEST.replace("run_id: id}", 'headers: {X-Who: "{arguments.who}"}, run_id: id}')
    async with declared(text, replies(200, {"id": "7"})) as (connector, engine):
        with pytest.raises(Rejected, match="X-Who"):
            await connector.start(JOB, {"who": "a\r\nX-Admin: yes"}, key=uuid4())
    assert not engine.received


async def test_a_run_is_looked_up_among_the_latest_of_an_engine_that_cannot_be_asked_for_a_key():
    """B3: one that is not among them is none, and an answer without a list leaves it open."""
    text = with_line("find: {get: /runs, one: {of: runs, where: note, equals: 'for {key}'}, run_id: id}")
    key = uuid4()
    runs = [{"id": 1, "note": f"for {uuid4()}"}, {"id": 2, "note": f"for {key}"}, {"id": 3}]
    async with declared(text, replies(200, {"runs": runs})) as (connector, _):
        found = await connector.find_run(JOB, {}, key=key)
        assert found is not None and found.run_id == "2"
        assert await connector.find_run(JOB, {}, key=uuid4()) is None
    async with declared(text, replies(200, {"runs": None})) as (connector, _):
        with pytest.raises(InvalidAnswer, match="no list of runs"):
            await connector.find_run(JOB, {}, key=key)


# The login

LOGIN = """
login:
  request:
    {post: /login, json: {user: "{username}", secret: "{password}"}, token: data.token, again_on: [401, 403]}
"""


async def test_a_token_that_the_engine_no_longer_takes_is_renewed_once():
    """A5.1: concurrent requests log in once, and a refused one is sent again with the new token."""
    logins: list[str] = []

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        if request.target == "/login":
            logins.append(f"token-number-{len(logins)}")
            writer.write(response(200, json.dumps({"data": {"token": logins[-1]}})))
        elif request.headers.get("authorization") == "Bearer token-number-1":
            writer.write(response(200, json.dumps({"id": "7", "state": "going"})))
        else:
            writer.write(response(403, "{}"))

    secrets = {"username": "ada", "password": "long-password-123"}
    async with declared(SMALLEST + LOGIN, behave, **secrets) as (connector, engine):
        polls = await asyncio.gather(*(connector.poll(run_of("7")) for _ in range(5)))
        started = await connector.start(JOB, {}, key=uuid4())
    assert [poll.state for poll in polls] == [RunState.RUNNING] * 5
    assert started.run_id == "7"
    assert len(logins) == 2
    assert [request.json for request in engine.received if request.target == "/login"] == [
        {"user": "ada", "secret": "long-password-123"}
    ] * 2


async def test_a_login_that_goes_on_failing_is_the_operators_and_sends_no_start():
    """A5.1: a wrong password is told apart, and is not tried for ever."""
    refuse = replies(401, {"message": "Wrong: long-password-123"})
    async with declared(SMALLEST + LOGIN, refuse, password="long-password-123") as (connector, engine):
        with pytest.raises(Rejected, match="The login failed") as caught:
            await connector.start(JOB, {}, key=uuid4())
    assert caught.value.needs_operator
    assert "long-password-123" not in str(caught.value)
    assert [request.target for request in engine.received] == ["/login"]


async def test_a_login_that_is_not_there_does_not_pass_for_a_run_that_is_not_there():
    """A8.1: else a running run would be given up."""
    async with declared(SMALLEST + LOGIN, replies(404, {})) as (connector, _):
        with pytest.raises(Misconfigured):
            await connector.poll(run_of("7"))


async def test_an_optional_login_is_made_only_with_secrets():
    """A5.1: one declaration for an engine with a login and without."""
    optional = LOGIN.replace("again_on: [401, 403]", "optional: true")
    answers = {"/login": {"data": {"token": "token-1"}}, "/jobs": []}
    for secrets, targets in (({}, ["/jobs"]), ({"password": "long-password-123"}, ["/login", "/jobs"])):
        async with declared(SMALLEST + optional, routes(answers), **secrets) as (connector, engine):
            await listed(connector)
        assert [request.target for request in engine.received] == targets


async def test_a_user_name_and_password_are_sent_as_basic_authentication():
    """A5.1: with each request."""
    login = {"username": "ada", "password": "lovelace"}
    async with declared(with_line("login: {basic: true}"), replies(200, []), **login) as (connector, engine):
        await listed(connector)
    assert engine.received[0].headers["authorization"] == "Basic YWRhOmxvdmVsYWNl"


async def test_a_token_of_oauth_is_renewed_once_the_engine_refuses_it():
    """A5.1: from the token URL of the source's settings."""
    given = iter(["first-token", "second-token"])

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        if request.target == "/oauth/token":
            writer.write(response(200, json.dumps({"access_token": next(given), "expires_in": 3600})))
        else:
            is_known = request.headers.get("authorization") == "Bearer second-token"
            writer.write(response(200, "[]") if is_known else response(401, "{}"))

    async with ScriptedEngine(behave) as engine:
        oauth = {"oauth_token_url": f"{engine.base_url}/oauth/token", "oauth_client_id": "catalogue"}
        text = with_line("login: {oauth: true}")
        async with closing(
            made(text, engine.base_url, oauth_client_secret="s3cret-of-ours", **oauth)
        ) as connector:
            assert await listed(connector) == []
    assert [request.target for request in engine.received] == ["/oauth/token", "/jobs"] * 2


# Starts that may have happened before

OWN = SMALLEST.replace(
    'json: "{arguments}", run_id: id',
    'json: {id: "{key}"}, run_id: id, own_run_id: "{key}", already_started: 409',
)


async def test_a_start_that_the_engine_has_already_is_the_same_run_once_its_status_says_so():
    """B3: a 409 alone may mean something else."""
    key = UUID(int=7)

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        is_status = request.method == "GET" and request.target == f"/runs/{key}"
        writer.write(
            response(200, '{"state": "going"}') if is_status else response(409, '{"message": "Exists."}')
        )

    async with declared(OWN, behave) as (connector, _):
        assert (await connector.start(JOB, {}, key=key)).run_id == str(key)

    async def deny(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(response(404 if request.method == "GET" else 409, '{"message": "The shop is closed."}'))

    async with declared(OWN, deny) as (connector, _):
        with pytest.raises(Rejected, match="The shop is closed"):
            await connector.start(JOB, {}, key=key)


async def test_errors_of_graphql_after_which_a_run_may_be_there_leave_the_outcome_open():
    """A7.2: without data nothing was carried out, with data something may have been."""
    text = SMALLEST.replace('json: "{arguments}"', 'graphql: "mutation { go { id } }"').replace(
        "run_id: id}", "run_id: data.go.id}"
    )
    for answer, expected in (
        ({"errors": [{"message": "Unknown field."}]}, Rejected),
        ({"data": {"go": None}, "errors": [{"message": "Lost."}]}, OutcomeUnknown),
        ({"data": {"go": {}}}, OutcomeUnknown),
    ):
        async with declared(text, replies(200, answer)) as (connector, _):
            with pytest.raises(expected):
                await connector.start(JOB, {}, key=uuid4())


# What a declared engine may reach


@pytest.mark.parametrize(
    "link", [NOWHERE, "//elsewhere.example.com/jobs", "http://169.254.169.254/latest", "http://[::1"]
)
async def test_a_link_to_another_host_is_not_followed(link):
    """E6: credentials and requests stay at the address that an admin entered."""
    text = with_line(
        "{get: /jobs, items: jobs, id: id, pages: {by: link, next: next}}",
        instead_of='{get: /jobs, items: "@", id: id}',
    )
    async with declared(text, replies(200, {"jobs": [{"id": "brew"}], "next": link})) as (connector, engine):
        with pytest.raises(InvalidAnswer, match="which is not on"):
            await listed(connector)
    assert len(engine.received) == 1


async def test_pages_are_followed_by_links_on_the_same_host():
    """A1.1: relative or whole, until there is none."""
    text = with_line(
        "{get: /jobs, items: jobs, id: id, pages: {by: link, next: next}}",
        instead_of='{get: /jobs, items: "@", id: id}',
    )
    pages = {
        "/jobs": {"jobs": [{"id": "a"}], "next": "?page=2"},
        "/jobs?page=2": {"jobs": [{"id": "b"}], "next": "/jobs?page=3"},
        "/jobs?page=3": {"jobs": [{"id": "c"}], "next": None},
    }
    async with declared(text, routes(pages)) as (connector, _):
        assert [item.id for item in await listed(connector)] == ["a", "b", "c"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status):
    """E6: also not to the same host, since it would repeat what was sent."""
    async with declared(SMALLEST, replies(status, {}, location=NOWHERE)) as (connector, engine):
        with pytest.raises(ConnectorError):
            await connector.poll(run_of("7"))
        with pytest.raises(ConnectorError):
            await connector.start(JOB, {}, key=uuid4())
    assert len(engine.received) == 2


@pytest.mark.parametrize("address", ["http://169.254.169.254", "http://100.100.100.200/latest", "ftp://tea"])
def test_an_address_that_nobody_may_contact_is_refused_in_the_form(address):
    """E6: the policy of all engines."""
    with pytest.raises(ValidationError):
        HttpJobConfig(base_url=address, preset="airflow")


# Listings with a second request for each workflow

DETAILED = with_line(
    '{get: /jobs, items: "@", id: id, detail: {get: "/jobs/{id}", description: about, inputs: {each: inputs, '
    "name: name, type: kind, types: {int: integer}, required: needed}}}",
    instead_of='{get: /jobs, items: "@", id: id}',
)


async def test_a_second_request_describes_each_workflow_and_one_that_fails_costs_itself_alone():
    """A1.1, B6: with its inputs as a schema."""
    inputs = [{"name": "cups", "kind": "int", "needed": True}, {"name": "sort", "kind": "tea"}]
    answers = {
        "/jobs": [{"id": "brew"}, {"id": "gone"}],
        "/jobs/brew": {"about": "Brews.", "inputs": inputs},
    }
    async with declared(DETAILED, routes(answers)) as (connector, _):
        brew, gone = await listed(connector)
    assert isinstance(brew, WorkflowDefinition) and isinstance(gone, RejectedDefinition)
    assert brew.description == "Brews."
    assert brew.input_schema == {
        "type": "object",
        "properties": {"cups": {"type": "integer"}, "sort": {}},
        "required": ["cups"],
    }
    assert gone.reason.startswith("Its detail request failed")


@pytest.mark.parametrize(
    ("declared_as", "seconds"),
    [("86400", 86_400), ("limit", 90), ("'limit || `60`'", 90), ("about", None), ("much", None)],
)
async def test_a_workflow_has_the_time_that_its_engine_allows(declared_as, seconds):
    """A7.4: otherwise the product's limit for all would cancel what the engine lets go on."""
    text = SMALLEST.replace("id: id}", f"id: id, timeout_seconds: {declared_as}}}", 1)
    job = {"id": "brew", "limit": 89.5, "about": "soon", "much": 1e300}
    async with declared(text, replies(200, [job])) as (connector, _):
        (brew,) = await listed(connector)
    assert isinstance(brew, WorkflowDefinition)
    assert brew.timeout_seconds == seconds


async def test_a_listing_goes_on_where_it_stopped():
    """A1.4: no more second requests than the source allows, none of them twice, and few at a time."""
    jobs = [{"id": f"job-{number}"} for number in range(500)]
    under_way, most = 0, 0

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        writer.write(response(200, json.dumps(jobs if request.target == "/jobs" else {"about": "Brews."})))
        under_way -= 1

    limits = {"details_at_once": 8, "details_per_listing": 300}
    async with declared(DETAILED, behave, **limits) as (connector, engine):
        with pytest.raises(Unreachable, match="the next one continues from there"):
            await listed(connector)
        assert len(engine.received) == 1 + 300
        found = await listed(connector)
    assert len(found) == 500
    assert all(isinstance(item, WorkflowDefinition) for item in found)
    assert len(engine.received) == 2 + 500
    assert most <= 8


# What else engines do


async def test_an_item_of_a_list_stands_for_each_argument():
    """B10: for engines that take name and value; what arguments say is never filled in again."""
    start = '{post: /runs, json: {with: ["{argument.name}={argument.value}"]}, run_id: id}'
    text = with_line(start, instead_of=START)
    async with declared(text, replies(200, {"id": "7"})) as (connector, engine):
        await connector.start(JOB, {"cups": 2, "sort": "{run_id} {name}"}, key=uuid4())
        await connector.start(JOB, {}, key=uuid4())
        with pytest.raises(Rejected, match="must not be a list or an object"):
            await connector.start(JOB, {"cups": [1]}, key=uuid4())
    first, second = (json.loads(request.body) for request in engine.received)
    assert first == {"with": ["cups=2", "sort={run_id} {name}"]}
    assert second == {"with": []}


async def test_a_form_may_be_all_arguments_which_are_not_filled_in_again():
    """B10, E6: with their values as they are."""
    text = with_line('{post: /runs, form: "{arguments}", run_id: id}', instead_of=START)
    async with declared(text, replies(200, {"id": "7"})) as (connector, engine):
        await connector.start(JOB, {"sort": "{name} & co", "hot": True}, key=uuid4())
    assert engine.received[0].body == b"sort=%7Bname%7D+%26+co&hot=true"


LOCATED = with_line('{post: "/jobs/{id}/runs", location: "/queue/{run_id}/"}', instead_of=START)


@pytest.mark.parametrize(
    ("location", "run_id"),
    [
        ("https://inside.example.com/tea/queue/41/", "41"),
        ("/queue/41", "41"),
        ("/queue/a%20b/", "a b"),
        ("/queue/41/more/", ""),
        ("/other/41/", ""),
        ("/queue/%2e%2e/", ".."),
        ("http://[::1", ""),
        ("", ""),
    ],
)
async def test_the_run_is_in_the_header_location_of_the_answer(location, run_id):
    """B3, E6: whatever host it names, nothing is sent there; without a run the outcome is open."""
    headers = {"location": location} if location else {}
    async with declared(LOCATED, replies(201, "", **headers)) as (connector, engine):
        if run_id:
            assert (await connector.start(JOB, {}, key=uuid4())).run_id == run_id
        else:
            with pytest.raises(OutcomeUnknown, match="Location"):
                await connector.start(JOB, {}, key=uuid4())
    assert len(engine.received) == 1


async def test_lines_of_a_plain_answer_are_read_without_our_secrets():
    """E6: a log may repeat what was sent."""
    text = with_line("logs: {get: '/runs/{run_id}/log', read: lines, output: '[-2:]'}")
    text += "login: {headers: {X-Key: '{token}'}}\n"
    log = "first\nkey key-of-the-engine-0123456789\n\xfflast"

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        is_log = request.target.endswith("/log")
        writer.write(response(200, log if is_log else json.dumps({"state": "done"})))

    async with declared(text, behave, token="key-of-the-engine-0123456789") as (connector, _):
        snapshot = await connector.poll(run_of("7"))
    assert snapshot.raw["logs"][0].startswith("key ")
    assert "0123456789" not in str(snapshot.raw)


@pytest.mark.parametrize(
    ("told", "percent"),
    [("1/4", 25.0), ("0/0", None), ("4/1", 100.0), (40, 40.0), ("half", None), ("9" * 30 + "/1", None)],
)
async def test_progress_may_be_a_fraction(told, percent):
    """A7.3: as Argo and others write it."""
    text = SMALLEST.replace("  state: state", "  state: state\n  progress: progress")
    async with declared(text, replies(200, {"state": "going", "progress": told})) as (connector, _):
        assert (await connector.poll(run_of("7"))).progress == percent


APPROVAL = {
    "id": 7,
    "text": "Is the\u202e tea good?\n" + "x" * 5_000,
    "page": "javascript:alert(1)",
    "until": "tomorrow",
    "schema": {"properties": {"verdict": {"enum": ["yes", "no"]}}, "required": "verdict"},
    "fields": {"cups": {"type": "int", "needed": True}, "sort": {"type": "leaf"}},
}


def asking(answers: dict[str, Any]) -> dict[str, Any]:
    """By path; a run that waits, unless `answers` say another."""
    return {"/runs/7": {"state": "waiting"}, "/runs/7/approvals": {"open": [APPROVAL]}} | answers


async def test_what_a_run_asks_is_read_and_its_answer_sent_in_parts():
    """A8.2, E6: an engine's words are data; what cannot be used is left out."""
    text = with_line(ASKING).replace("going: running", "going: running, waiting: running")
    async with declared(text, routes(asking({"/approvals/7": {}}))) as (connector, engine):
        (question,) = (await connector.poll(run_of("7"))).questions
        answer = {"verdict": "yes", "cups": 2, "why": "{id} {{x}}"}
        await connector.answer(run_of("7"), "7", answer)
        with pytest.raises(NotFound, match="does not ask this any more"):
            await connector.answer(run_of("7"), "8", answer)
    assert (question.id, question.url, question.until) == ("7", "", None)
    assert question.message.startswith("Is the  tea good?\nx") and len(question.message) == 2_000
    assert question.schema == {
        "type": "object",
        "properties": {
            "verdict": {"enum": ["yes", "no"]},
            "cups": {"type": "integer"},
            "sort": {},
        },
        "required": ["cups"],
    }
    (sent,) = [one for one in engine.received if one.method == "POST"]
    assert sent.json == {"verdicts": ["yes"], "fields": {"cups": 2}, "all": answer}


async def test_a_run_that_cannot_ask_costs_no_request_and_an_engine_that_cannot_say_asks_nothing():
    """A8.2: but a question that could not be read counts neither as gone nor as answered."""
    text = with_line(ASKING).replace("going: running", "going: running, waiting: running")
    answers = asking({"/runs/7": {"state": "going"}})
    async with declared(text, routes(answers)) as (connector, engine):
        assert not (await connector.poll(run_of("7"))).questions
        assert [one.target for one in engine.received] == ["/runs/7"]
        answers["/runs/7"] = {"state": "waiting"}
        del answers["/runs/7/approvals"]
        assert not (await connector.poll(run_of("7"))).questions
        answers["/runs/7/approvals"] = {"open": "all"}
        with pytest.raises(InvalidAnswer, match="no list of questions"):
            await connector.poll(run_of("7"))
        answers["/runs/7"] = {"state": "done"}
        with pytest.raises(NotFound, match="has ended"):
            await connector.answer(run_of("7"), "7", {})


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (404, NotFound, "404"),
        (409, NotFound, "does not ask this any more: It is late."),
        (403, Rejected, "refused the answer: It is late."),
        (422, Rejected, "It is late."),
        (429, Unreachable, "429"),
        (500, OutcomeUnknown, "500"),
        (302, OutcomeUnknown, "302"),
    ],
)
async def test_what_an_engine_says_of_an_answer_decides_what_became_of_it(status, error, words):
    """A8.2: gone, refused, not arrived, or unknown."""
    text = with_line(ASKING).replace("going: running", "going: running, waiting: running")
    answers = asking({})

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        told = (
            (status, {"message": "It is late."})
            if request.method == "POST"
            else (200, answers[request.target])
        )
        await replies(*told)(request, writer)

    async with declared(text, behave) as (connector, engine):
        with pytest.raises(error, match=words):
            await connector.answer(run_of("7"), "7", {"verdict": "no"})
    assert [one.method for one in engine.received].count("POST") == 1


async def test_a_run_goes_on_being_followed_where_its_progress_cannot_be_read():
    """A7.3: the second request of a poll is one that it can do without."""
    text = with_line("progress: {get: '/runs/{run_id}/steps', done: done, total: total, message: now}")
    answers: dict[str, Any] = {"/runs/7": {"state": "going"}}
    async with declared(text, routes(answers)) as (connector, _):
        assert (await connector.poll(run_of("7"))).progress is None
        answers["/runs/7/steps"] = {"done": 1, "total": 2, "now": "boil"}
        seen = await connector.poll(run_of("7"))
    assert (seen.progress, seen.progress_message) == (50.0, "boil")


async def test_a_run_in_jenkins_queue_is_waiting_there_and_cancelled_there():
    """A7.5, A8.2: it has no number before an executor takes it."""
    jenkins = Jenkins()
    jenkins.queued_seconds = 600
    with serving(jenkins):
        config = {"preset": "jenkins", "username": "tea", "password": JobEngine.secret}
        made = HttpJobConfig.model_validate(config | {"base_url": f"http://127.0.0.1:{jenkins.port}"})
        async with closing(HttpJobConnector(made)) as connector:
            last = WorkflowRef(id="last", name="last", metadata={"kept": {"verb": "build"}})
            started = await connector.start(last, {}, key=uuid4())
            run = RunRef(workflow=last, run_id=started.run_id, key=uuid4())
            seen = await connector.poll(run)
            assert (seen.state, seen.progress_message) == (RunState.RUNNING, "In the quiet period")
            await connector.cancel(run)
            assert (await connector.poll(run)).state is RunState.CANCELLED


CUPS = {"type": "string", "description": "How many.", "default": "2"}
INPUTS = {
    "argo": {"properties": {"cups": CUPS, "sort": {"type": "string"}}, "required": ["sort"]},
    "awx": {
        "properties": {
            "cups": {"type": "integer", "description": "How many.", "default": 2},
            "sort": {"type": "string", "description": "Sort", "enum": ["Assam", "Darjeeling"]},
        },
        "required": ["cups"],
    },
    "jenkins": {
        "properties": {
            "cups": {"type": "string", "description": "How many.", "default": 2},
            "sort": {"type": "string", "enum": ["Assam", "Darjeeling"]},
        },
    },
}


@pytest.mark.parametrize(("preset", "engine"), [("argo", Argo), ("awx", Awx), ("jenkins", Jenkins)])
async def test_parameters_of_the_engines_are_inputs(preset, engine):
    """A6.1: with types, choices and defaults, and what cannot be run is not listed."""
    login = {"username": "tea", "password": JobEngine.secret}
    with serving(engine()) as running:
        config = {"preset": preset, "base_url": f"http://127.0.0.1:{running.port}"}
        config |= login if preset == "jenkins" else {"token": JobEngine.secret}
        async with closing(HttpJobConnector(HttpJobConfig.model_validate(config))) as connector:
            found = {item.name: item for item in await listed(connector)}
    assert found.keys() == {"complete", "fail", "last"}
    complete = found["complete"]
    assert isinstance(complete, WorkflowDefinition)
    assert complete.input_schema == {"type": "object"} | INPUTS[preset]


# Answers that lie


@pytest.mark.parametrize(
    "answer",
    [
        {"state": "melted"},
        {"state": ["done"]},
        {"state": None},
        {"state": {"a": 1}},
        [],
        None,
        7,
    ],
)
async def test_a_state_that_is_not_declared_is_the_engines_mistake(answer):
    """B6: neither a state nor an error of Python's."""
    async with declared(SMALLEST, replies(200, answer)) as (connector, _):
        with pytest.raises(InvalidAnswer):
            await connector.poll(run_of("7"))


async def test_a_listing_that_announces_more_than_it_has_is_no_short_listing():
    """A1.4: else the missing workflows would be gone."""
    text = with_line(
        '{get: "/jobs?at={offset}", items: jobs, id: id, pages: {by: offset, total: total}}',
        instead_of='{get: /jobs, items: "@", id: id}',
    )
    async with declared(text, replies(200, {"jobs": [], "total": 300})) as (connector, _):
        with pytest.raises(InvalidAnswer, match="announces 300 items"):
            await listed(connector)


@pytest.mark.parametrize("by", ["page", "offset"])
async def test_pages_that_are_smaller_than_requested_are_read_to_the_announced_total(by):
    """A1.1, A1.4: an engine may limit the size of its pages, and a page may have nothing that can run."""
    text = with_line(
        f'{{get: "/jobs?at={{{by}}}", items: jobs, only: runs, id: id, '
        f"pages: {{by: {by}, size: 100, total: total}}}}",
        instead_of='{get: /jobs, items: "@", id: id}',
    )
    jobs = [{"id": str(number), "runs": number > 2} for number in range(6)]
    firsts = {"page": ("1", "2", "3"), "offset": ("0", "2", "4")}[by]
    pages = {
        f"/jobs?at={first}": {"jobs": jobs[number * 2 : number * 2 + 2], "total": 6}
        for number, first in enumerate(firsts)
    }
    async with declared(text, routes(pages)) as (connector, engine):
        assert [getattr(item, "id", None) for item in await listed(connector)] == ["3", "4", "5"]
        engine.behave = routes(pages | {f"/jobs?at={firsts[2]}": {"jobs": [], "total": 6}})
        with pytest.raises(InvalidAnswer, match="announces 6 items, but has none from 4 on"):
            await listed(connector)


async def test_a_listing_without_declared_pages_that_announces_more_is_no_whole_listing():
    """A1.4, A5.1"""
    text = with_line("{get: /jobs, items: jobs, id: id}", instead_of='{get: /jobs, items: "@", id: id}')
    async with declared(text, replies(200, {"jobs": [{"id": "a"}], "total": 2})) as (connector, _):
        with pytest.raises(InvalidAnswer, match=r"announces 2 items \(total\), but has only 1"):
            await listed(connector)


async def test_what_is_no_workflow_is_left_out_only_if_it_has_an_id():
    """A1.4, B6: what is garbage is skipped with a reason, so that it is no empty listing."""
    text = with_line(
        "{get: /jobs, items: jobs, only: runs, id: id}", instead_of='{get: /jobs, items: "@", id: id}'
    )
    jobs = [{"id": "a", "runs": True}, {"id": "folder"}, {"runs": False}, 7, {"id": "b", "runs": 1}]
    async with declared(text, replies(200, {"jobs": jobs})) as (connector, _):
        found = await listed(connector)
        assert (await connector.check()).message.endswith("workflows listed: 4.")
    assert [(item.id, type(item)) for item in found] == [
        ("a", WorkflowDefinition),
        ("", RejectedDefinition),
        ("", RejectedDefinition),
        ("b", WorkflowDefinition),
    ]
    assert [item.position for item in found if isinstance(item, RejectedDefinition)] == [2, 3]


async def test_one_workflow_that_is_nested_too_deep_costs_itself_alone():
    """B6: the others are listed."""
    deep = "[" * 300 + "]" * 300
    async with declared(SMALLEST, replies(200, f'[{{"id": "a"}}, {{"id": "b", "x": {deep}}}]')) as (
        connector,
        _,
    ):
        first, second = await listed(connector)
    assert isinstance(first, WorkflowDefinition) and isinstance(second, RejectedDefinition)


async def test_times_are_read_in_each_of_the_usual_spellings():
    """B3: seconds, milliseconds and ISO 8601 are the same moment; others are left out."""
    text = SMALLEST.replace("state: state", "state: state\n  started_at: at")
    found = []
    for at in (1_700_000_000, 1_700_000_000_000, "2023-11-14T22:13:20Z", "soon", True, 1e300):
        async with declared(text, replies(200, {"state": "going", "at": at})) as (connector, _):
            found.append((await connector.poll(run_of("7"))).started_at)
    assert found[0] == found[1] == found[2] is not None
    assert found[3:] == [None, None, None]


async def test_the_answer_to_a_start_can_be_text():
    """A2.3: expressions find its lines; one that finds no id leaves the outcome open."""
    start = """{post: "/jobs/{id}/runs", headers: {Accept: text/plain}, read: lines, run_id: "[1]"}"""
    text = SMALLEST.replace('{post: "/jobs/{id}/runs", json: "{arguments}", run_id: id}', start)
    async with declared(text, replies(200, "started\nrun-7\n", content_type="text/plain")) as (
        connector,
        engine,
    ):
        assert (await connector.start(JOB, {}, key=uuid4())).run_id == "run-7"
    assert engine.received[0].headers["accept"] == "text/plain"
    async with declared(text, replies(200, "started", content_type="text/plain")) as (connector, _):
        with pytest.raises(OutcomeUnknown):
            await connector.start(JOB, {}, key=uuid4())


async def test_of_several_versions_the_newest_is_listed_and_inputs_stand_in_for_a_schema():
    """A1.1, A6.1: the order of the listing does not matter, and a schema goes before names."""
    schema = {"type": "object", "properties": {"cups": {"type": "integer"}}}
    jobs = [
        {"id": "brew", "v": 10, "inputs": ["cups"]},
        {"id": "brew", "v": 9, "schema": schema},
        {"id": "pour", "v": 1, "inputs": ["cups"], "schema": schema},
        {"id": "pour", "v": 1.5, "inputs": ["cups"], "schema": schema},
        {"id": "rinse", "inputs": []},
        {"v": 3},
    ]
    of_list = """list:
  {get: /jobs, items: "@", id: id, newest: v, version: v, input_schema: schema,
   inputs: {each: inputs, name: "@"}}"""
    text = SMALLEST.replace('list: {get: /jobs, items: "@", id: id}', of_list)
    async with declared(text, replies(200, jobs)) as (connector, _):
        items = await listed(connector)
    found = {item.id: item for item in items if isinstance(item, WorkflowDefinition)}
    assert {name: item.version for name, item in found.items()} == {
        "brew": "10",
        "pour": "1.5",
        "rinse": "1.0.0",
    }
    assert found["brew"].input_schema == {"type": "object", "properties": {"cups": {}}}
    assert found["pour"].input_schema == schema
    assert len(items) == len(found) + 1  # The one without an id is rejected


async def test_logs_can_be_plain_text():
    """A2.4: the last lines of it are kept."""
    text = with_line('logs: {get: "/runs/{run_id}/log", read: lines, output: "@"}')
    log = response(200, "\n".join(f"line {number}" for number in range(50)), content_type="text/plain")

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(log if request.target.endswith("/log") else response(200, '{"state": "done"}'))

    async with declared(text, behave) as (connector, _):
        seen = await connector.poll(run_of("7"))
    assert seen.raw["logs"][-1] == "line 49"
    assert len(seen.raw["logs"]) == 20
