"""Executions in the admin: what ran, what came of it, and cancelling it."""

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from access.callers import Caller
from catalogue import long_lists
from catalogue.actions.workflows import enable_workflows
from catalogue.discovery import refresh_source
from catalogue.history import command, record_change
from catalogue.models import HistoryEntry, Workflow
from executions.models import Approval, Execution, ExecutionPayload, Retention, State
from executions.models.lifecycle import StartRequest
from executions.starting import create_execution
from tests import plain_http
from tests.admin.pages import add_url, form_values, list_url, listed, page_url, press, text_of, told
from tests.executions.steps import advance_due_executions
from tests.factories import make_event, make_execution, make_source, make_workflow
from tests.processes import ExampleEngine

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script>"
AGENT = Caller(key="token:1", name="an agent")


def found(client: Client, **query: str) -> list[Execution]:
    return list(listed(client, list_url(Execution), query).result_list)


# The list


def test_the_list_shows_state_error_caller_and_progress(admin_client):
    """A8.2, B3."""
    source = make_source("orders")
    make_execution(make_workflow(source), state=State.RUNNING, progress=40.0, caller_name="claude")
    make_execution(
        make_workflow(source),
        state=State.FAILED,
        error=f'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: {"x" * 500}',
    )
    shown = text_of(admin_client.get(list_url(Execution)))
    assert "running, 40 % - orders claude, MCP just now -" in shown
    assert f"failed ValueError: {'x' * 107}… orders" in shown


def test_lists_on_other_pages_show_the_cause_of_each_error(admin_client):
    """On the page of the workflow, the overview, and the page of an approval of the same tool."""
    workflow = make_workflow(name="billing")
    error = 'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: no such invoice'
    make_execution(workflow, state=State.FAILED, error=error, caller_name="claude")
    approval = Approval.objects.create(
        execution=make_execution(workflow, state=State.UNAPPROVED),
        requested_at=timezone.now(),
        expires_at=timezone.now() + timedelta(hours=1),
    )
    for address in (page_url(workflow), "/admin/", page_url(approval)):
        assert "billing failed KeyError: no such invoice claude, MCP" in text_of(admin_client.get(address))


def test_the_list_never_reads_payloads(admin_client):
    """B3: a large result slows nothing but its own page."""
    make_execution(payload={"output": "x" * 200_000})
    with CaptureQueriesContext(
        connection,
    ) as queries:
        page = admin_client.get(list_url(Execution))
    assert page.status_code == 200
    assert not [query for query in queries if ExecutionPayload._meta.db_table in query["sql"]]


@pytest.mark.databases("executions.admin.executions")
def test_an_execution_is_found_by_any_of_its_ids(admin_client):
    """B3, B8: the id that somebody has in a log leads to the record."""
    wanted = make_execution(run_id="8f496b6a-c905-41bb-b7b7-200a8982ab30", correlation_id="2724_9a92")
    make_execution()
    for query in (str(wanted.pk), wanted.pk.hex, wanted.run_id, "2724_9a92", wanted.tool_name):
        assert found(admin_client, q=query) == [wanted], query


@pytest.mark.databases("catalogue.admin.base")
def test_a_long_list_is_counted_so_far_and_leads_to_older_rows(admin_client, monkeypatch):
    """B3: its price does not grow with what has run, and no row is out of reach."""
    monkeypatch.setattr(long_lists, "COUNTED", 50)
    now = timezone.now()
    made = {make_execution(created_at=now - timedelta(seconds=number // 2)).pk for number in range(120)}
    address, seen, costs = list_url(Execution), set(), set()
    while address:
        with CaptureQueriesContext(connection) as queries:
            page = admin_client.get(address)
        costs.add(len(queries))
        rows, told_more = page.context["cl"], "more than 50 executions" in text_of(page)
        seen |= {row.pk for row in rows.result_list}
        address = rows.older and list_url(Execution) + rows.older
        assert told_more == bool(address) == ("Older entries" in text_of(page))
    assert seen == made
    assert len(costs) == 1 and costs.pop() < 10


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("p=rubbish", "This list has no page rubbish; this is the first page."),
        ("p=900000", "This list has no page 900000; this is the first page."),
        ("o=rubbish", "This list has no order rubbish; it is in its default order."),
        (
            "created_at__lte=rubbish",
            "This list cannot be filtered by created_at__lte=rubbish; it is unfiltered.",
        ),
        ("no_such_column=1", "This list cannot be filtered by no_such_column=1; it is unfiltered."),
        (
            "workflow__source__name=billing",
            "This list cannot be filtered by workflow__source__name=billing; it is unfiltered.",
        ),
    ],
)
def test_an_address_that_no_list_has_says_what_was_wrong_with_it(admin_client, monkeypatch, query, told):
    """A bookmark may be older than the rows, or cut off by a mail."""
    monkeypatch.setattr("executions.admin.executions.ExecutionAdmin.list_per_page", 1)
    for _ in range(2):
        make_execution()
    page = admin_client.get(f"{list_url(Execution)}?{query}", follow=True)
    assert page.redirect_chain == [(list_url(Execution), 302)]
    assert told in text_of(page)


@pytest.mark.databases("catalogue.long_lists")
def test_a_state_that_most_executions_share_is_listed_like_one_that_few_have(admin_client, monkeypatch):
    """B3: the newest first, though another index answers it."""
    now = timezone.now()
    made = [
        make_execution(
            state=(State.FAILED, State.TIMED_OUT, State.COMPLETED)[number % 3],
            created_at=now - timedelta(minutes=number),
            finished_at=now - timedelta(minutes=number),
        )
        for number in range(9)
    ]
    wanted = [execution for execution in made if execution.state != State.COMPLETED]
    for counted in (2, 100):
        monkeypatch.setattr(long_lists, "COUNTED", counted)
        assert found(admin_client, state__exact="unsuccessful") == wanted
        assert found(admin_client, ended="24h") == made
    monkeypatch.setattr("executions.admin.executions.ExecutionAdmin.list_per_page", 4)
    pages = [found(admin_client, state__exact="unsuccessful", p=str(page)) for page in (1, 2)]
    assert pages == [wanted[:4], wanted[4:]]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL plans by what its tables hold")
@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("state__exact=under_way", "execution_by_state"),
        ("state__exact=unsuccessful", "execution_by_state"),
        ("ended=24h", "created_at"),
    ],
)
def test_a_list_reads_no_more_rows_than_it_shows_however_many_match(admin_client, monkeypatch, query, index):
    """B3: an index gives the order, and one counts what a filter finds; nothing is walked or sorted."""
    monkeypatch.setattr(long_lists, "COUNTED", 4)
    monkeypatch.setattr("executions.admin.executions.ExecutionAdmin.list_per_page", 2)
    for state in (State.RUNNING, State.FAILED, State.TIMED_OUT, State.STARTING) * 2:
        make_execution(state=state, admitted_at=timezone.now(), finished_at=timezone.now())
    with CaptureQueriesContext(connection) as queries:
        assert admin_client.get(f"{list_url(Execution)}?{query}").status_code == 200
    of_list = [one["sql"] for one in queries if 'FROM "executions_execution"' in one["sql"]]
    (counting,) = [sql for sql in of_list if "COUNT(" in sql]
    (sorting,) = [sql for sql in of_list if "ORDER BY" in sql]
    assert "SEARCH executions_execution USING" in plan_of(counting)
    assert index in plan_of(sorting) and "TEMP B-TREE FOR ORDER BY" not in plan_of(sorting)


def plan_of(statement: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {statement.replace('%', '%%')}", [])
        return "\n".join(row[-1] for row in cursor.fetchall())


@pytest.mark.databases("executions.admin.page")
def test_executions_are_filtered_by_state_source_door_and_date(admin_client):
    """A8.2, E10."""
    workflow = make_workflow(make_source("orders"))
    wanted = make_execution(workflow, state=State.FAILED, door="rest")
    make_execution(created_at=timezone.now() - timedelta(days=2))
    queries: list[dict[str, Any]] = [
        {"state__exact": "failed"},
        {"source_name": "orders"},
        {"door__exact": "rest"},
        {"created": "in the last 24 hours"},
        {"workflow__id__exact": str(workflow.pk)},
    ]
    for query in queries:
        assert found(admin_client, **query) == [wanted], query


# One execution


def test_an_executions_page_tells_the_whole_story(admin_client):
    """A8.2, A8.4, B3: ids, times, error, progress, timeline, input, output and the raw answers."""
    execution = make_execution(
        state=State.FAILED,
        run_id="run-1",
        correlation_id="2724_9a92",
        error="Line 3 is ragged.",
        error_kind="execution",
        payload={
            "input": {"csv": "a,b"},
            "output": None,
            "start_answer": {"workflow_id": "run-1"},
            "status_answer": {"status": "FAILED"},
        },
    )
    make_event(execution, "started", "The engine runs it as run-1.")
    shown = text_of(admin_client.get(page_url(execution)))
    for part in (
        "run-1",
        "2724_9a92",
        "Line 3 is ragged.",
        "Execution id",
        str(execution.pk),
        "2.0\N{NO-BREAK SPACE}s",
    ):
        assert part.replace("\N{NO-BREAK SPACE}", " ") in shown, part
    for part in ('"csv": "a,b"', '"status": "FAILED"', "The engine runs it as run-1.", "token:1"):
        assert part in shown, part


def test_a_page_begins_with_the_state_and_ends_with_what_few_need(admin_client):
    execution = make_execution(payload={"status_answer": {"status": "done"}})
    page = admin_client.get(page_url(execution)).content.decode()
    parts = ("panel-state", "execution-payloads", "execution-timeline", "panel-facts", "execution-raw")
    places = [page.index(f'id="{part}"') for part in parts]
    assert places == sorted(places)
    assert "/failures/" not in page


def test_the_page_of_a_failure_leads_to_those_like_it(admin_client):
    executions = [make_execution(state=State.FAILED, error=f"Order {number} is gone.") for number in range(2)]
    make_execution(state=State.FAILED, error="Another")
    page = admin_client.get(page_url(executions[0])).content.decode()
    found = re.search(r'href="([^"]*/failures/[^"]*)"', page)
    assert found is not None
    (cause,) = admin_client.get(html.unescape(found[1])).context["causes"]
    assert cause.cause.runs == 2


def test_a_traceback_is_shown_once_with_its_own_lines(admin_client):
    """A8.4, B3: above; the timeline tells what its last line says."""
    last = "ValueError: 3 columns instead of 4"
    error = f'Traceback (most recent call last):\n  File "/app/step.py", line 7, in run\n{last}'
    execution = make_execution(state=State.FAILED, error=error, error_kind="execution", polls=1)
    make_event(execution, "failed", error)
    page = admin_client.get(page_url(execution))
    shown = html.unescape(page.content.decode())
    assert f">{error}</pre>" in shown
    assert shown.index('id="cause"') < shown.index("<details", shown.index('id="cause"')) < shown.index(error)
    assert shown.count("Traceback (most recent call last)") == 1
    assert f"failed {last}" in text_of(page)
    assert "Status polled once" in text_of(page)


def test_a_large_payload_is_cut_and_says_how_large_it_is(admin_client):
    """B3: a page of ten megabytes helps nobody."""
    execution = make_execution(payload={"output": {"text": "y" * 150_000}})
    page = admin_client.get(page_url(execution)).content.decode()
    assert "The first 100,000 of 150," in page
    assert len(page) < 165_000


def test_a_payload_that_was_not_kept_says_so(admin_client):
    """B3: what was cut is said."""
    cut = [{"payload": "output", "bytes": 12_000_000}]
    execution = make_execution(payload={"output": None, "cut": cut})
    assert "Not kept: the size of 12,000,000 bytes" in text_of(admin_client.get(page_url(execution)))


def test_a_record_can_be_read_when_its_workflow_and_payload_are_gone(admin_client):
    """A1.3, E6: history stays, also after payloads were pruned."""
    execution = make_execution()
    ExecutionPayload.objects.all().delete()
    Workflow.objects.all().delete()
    assert execution.tool_name in text_of(admin_client.get(page_url(execution)))


def test_what_engines_and_agents_say_is_shown_as_text(admin_client):
    """B8: inputs, outputs, errors, progress and names are hostile."""
    execution = make_execution(
        state=State.FAILED,
        error=HOSTILE,
        progress=1.0,
        progress_message=HOSTILE,
        tool_name=HOSTILE,
        caller_name=HOSTILE,
        run_id=HOSTILE,
        payload={"input": {"a": HOSTILE}, "output": HOSTILE, "status_answer": {HOSTILE: 1}},
    )
    make_event(execution, HOSTILE[:30], HOSTILE)
    for url in (list_url(Execution), page_url(execution), "/admin/"):
        page = admin_client.get(url).content.decode()
        assert HOSTILE not in page
        assert "&lt;script&gt;alert(1)" in page


def make_queued(**fields: Any) -> Execution:
    execution = make_execution(state=State.PENDING, **fields)
    Execution.objects.filter(pk=execution.pk).update(admitted_at=None)
    execution.refresh_from_db()
    return execution


@pytest.mark.databases("executions.admin.executions")
def test_what_waits_in_the_queue_is_shown_as_such_and_found_apart(admin_client):
    """B7: it is not the same as being about to start."""
    queued, starting = make_queued(), make_execution(state=State.PENDING)
    assert "waiting in the queue" in text_of(admin_client.get(page_url(queued)))
    assert "as soon as the limits allow" in text_of(admin_client.get(page_url(queued)))
    assert "waiting to be started" in text_of(admin_client.get(page_url(starting)))
    assert found(admin_client, state__exact="queued") == [queued]
    assert found(admin_client, state__exact="pending") == [starting]


def test_the_page_tells_who_asked_for_what_version_and_when_there_was_room(admin_client):
    """B3, B8: idempotency key, version, content, client, and how long it waited in the queue."""
    metadata = {
        "version": "2.1",
        "content_hash": "0123456789abcdef" * 4,
        "client": {"name": "claude", "version": "3.0"},
    }
    created = timezone.now() - timedelta(minutes=5)
    execution = make_execution(
        idempotency_key="order-7",
        created_at=created,
        admitted_at=created + timedelta(minutes=2),
        payload={"metadata": metadata},
    )
    shown = text_of(admin_client.get(page_url(execution)))
    assert "Idempotency key order-7" in shown
    assert "Workflow version 2.1" in shown
    assert "Workflow content 0123456789ab Client claude 3.0" in shown
    assert f"Left the queue {timezone.localtime(execution.admitted_at):%Y-%m-%d %H:%M:%S}" in shown
    assert found(admin_client, q="order-7") == [execution]


@pytest.mark.parametrize(
    ("ahead", "told_of"),
    [(20, "a request is waiting for the result"), (-20, "its caller left without an answer")],
)
def test_the_page_tells_whether_anybody_waits(admin_client, ahead, told_of):
    """A7.1: an operator sees whose result nobody has got."""
    awaited_until = timezone.now() + timedelta(seconds=ahead)
    execution = make_execution(state=State.RUNNING, awaited_until=awaited_until)
    assert told_of in text_of(admin_client.get(page_url(execution)))
    Execution.objects.update(awaited_until=None)
    assert "Caller waits" not in text_of(admin_client.get(page_url(execution)))


NOW = timezone.now()
ASKED: dict[str, Any] = {"cancel_requested_at": NOW, "cancel_requested_by": "Bob"}


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"state": "running"} | ASKED, "requested; not sent to the engine yet"),
        ({"state": "running", "cancel_sent_at": NOW} | ASKED, "not confirmed yet"),
        (
            {"state": "running", "cancel_sent_at": NOW, "cancel_refusal": "No way."} | ASKED,
            "the engine refused: No way.",
        ),
        ({"state": "cancelled"} | ASKED, "Outcome of cancelling cancelled"),
        ({"state": "completed"} | ASKED, "it ended before it could be cancelled"),
    ],
)
def test_what_came_of_cancelling_is_told_as_it_is(admin_client, fields, outcome):
    """A7.5: asked for, sent, confirmed, refused and too late are five different things."""
    assert outcome in text_of(admin_client.get(page_url(make_execution(**fields))))


def test_what_the_retention_removed_is_said_where_it_would_be(admin_client):
    """E6."""
    execution = make_execution(payload={"input": None, "output": None})
    ExecutionPayload.objects.update(input=None, output=None)
    Execution.objects.update(payload_pruned_at=timezone.now(), events_pruned_at=timezone.now())
    shown = text_of(admin_client.get(page_url(execution)))
    assert shown.count("Removed by the retention") == 2


# The retention


@pytest.mark.databases("executions.admin.policies")
def test_the_retention_is_one_page_that_is_edited(admin_client):
    """B7, E6: without a restart, and within bounds."""
    page = admin_client.get(list_url(Retention), follow=True)
    assert "0 = not kept: removed within 15 minutes; empty = kept for ever" in text_of(page)
    form = form_values(page)
    assert form["keep_records_days"] == 90
    url = page_url(Retention.current())
    assert admin_client.post(url, form | {"keep_records_days": -1}).status_code == 200
    admin_client.post(url, form | {"keep_records_days": 7})
    assert Retention.current().keep_records_days == 7
    admin_client.post(url, form | {"keep_records_days": "", "keep_payloads_days": 0})
    assert (Retention.current().keep_records_days, Retention.current().keep_payloads_days) == (None, 0)
    assert HistoryEntry.objects.filter(model="executions.retention").exists()
    assert admin_client.get(add_url(Retention)).status_code == 403


# Resolving what is unconfirmed


def resolve(client: Client, execution: Execution, what: str, **form: str) -> Any:
    return client.post(page_url(execution).replace("/change/", f"/{what}/"), form)


def test_an_unconfirmed_executions_page_asks_what_came_of_it(admin_client):
    """B8: with the two answers that there are, and the key to look for if one was sent; nothing else asks."""
    keyed = make_source("keyed", config={"idempotency_header": "Idempotency-Key"})
    execution = make_execution(make_workflow(keyed), state=State.UNCONFIRMED)
    shown = text_of(admin_client.get(page_url(execution)))
    assert "It ran: follow this run" in shown and "It did not run: mark as failed" in shown
    assert "It ran: mark as completed" not in shown
    assert f"with the key {execution.pk}" in shown
    without_key = make_execution(make_workflow(make_source()), state=State.UNCONFIRMED)
    assert "with the key" not in text_of(admin_client.get(page_url(without_key)))
    assert "Did it run?" not in text_of(admin_client.get(page_url(make_execution())))


def test_of_a_run_that_was_lost_with_its_source_the_page_does_not_say_that_the_answer_was_lost(admin_client):
    """B5: whoever looks at the engine needs its run id."""
    execution = make_execution(state=State.RUNNING, run_id="run-7")
    Execution.objects.update(workflow=None)
    execution.workflow = None
    assert execution.lose_run("Its workflow was deleted.")
    page = text_of(admin_client.get(page_url(execution)))
    assert "It was running as run-7 when its workflow was deleted." in page
    assert "its response was lost" not in page


@pytest.mark.django_db(transaction=True)
def test_an_admin_resolves_it_with_the_run_that_the_engine_has(admin_client, example_engine):
    """B8, A8.4: the engine is asked, the run is followed, and the history says who did it."""
    source = make_source(base_url=example_engine.base_url, api_key=example_engine.api_key)
    workflow = make_workflow(source, upstream_id="1003", name="countdown")
    run_id = start_by_hand(example_engine, workflow)
    execution = make_execution(workflow, state=State.UNCONFIRMED)

    answer = resolve(admin_client, execution, "it_ran", run_id=f" {run_id} ")

    assert f"the engine runs it as {run_id}" in told(answer)
    execution.refresh_from_db()
    assert (execution.state, execution.run_id) == (State.RUNNING, run_id)
    assert HistoryEntry.objects.get(object_id=execution.pk).actor_name == "admin"
    Execution.objects.update(next_attempt_at=timezone.now())
    advance_due_executions()
    execution.refresh_from_db()
    assert execution.succeeded


def start_by_hand(engine: ExampleEngine, workflow: Workflow) -> str:
    answer = plain_http.post(
        f"{engine.base_url}/api/v1/service/workflows/{workflow.upstream_id}/start",
        json={"input": {"seconds": 0}, "source": "application"},
        headers={"authorization": f"Api-Key {engine.api_key}"},
    )
    return str(answer.raise_for_status().json()["workflow_id"])


def make_http_tool(name: str = "shop", **metadata: Any) -> Workflow:
    """A POST of an API, which does not keep runs."""
    source = make_source(name, kind="http", config={"base_url": "https://api.example.com"}, api_key="")
    return make_workflow(source, metadata={"method": "POST", "path": "/orders", **metadata})


def test_the_page_of_a_lost_request_asks_for_no_run_that_its_api_could_not_name(admin_client):
    """B8, C5.3: and for a key only where the API got one."""
    shown = text_of(admin_client.get(page_url(make_execution(make_http_tool(), state=State.UNCONFIRMED))))
    assert "It ran: mark as completed" in shown and "It did not run: mark as failed" in shown
    assert "Run id" not in shown and "with the key" not in shown
    keyed = make_execution(
        make_http_tool("keyed", idempotency_header="Idempotency-Key"), state=State.UNCONFIRMED
    )
    assert f"with the key {keyed.pk}" in text_of(admin_client.get(page_url(keyed)))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("written", "output"), [("", None), ('{"id": 7}', {"id": 7})])
def test_an_admin_says_that_a_lost_request_was_carried_out(admin_client, written, output):
    """B8, C5.3: it has completed, with what the admin says that came of it."""
    execution = make_execution(
        make_http_tool(), state=State.UNCONFIRMED, error="Lost.", payload={"output": None}
    )

    assert "Resolved: it ran" in told(resolve(admin_client, execution, "it_ran", output=written))

    execution.refresh_from_db()
    assert (execution.state, execution.error, execution.payload.output) == (State.COMPLETED, "", output)
    assert "admin: it ran." in text_of(admin_client.get(page_url(execution)))
    assert HistoryEntry.objects.get(object_id=execution.pk).actor_name == "admin"
    assert "Nothing to resolve" in told(resolve(admin_client, execution, "it_did_not_run"))


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"output": "{id: 7}"}, "not valid JSON"),
        ({"run_id": "7"}, "does not keep runs"),
        ({"run_id": ""}, "A run id must consist of"),
    ],
)
@pytest.mark.django_db(transaction=True)
def test_what_cannot_have_come_of_a_lost_request_changes_nothing(admin_client, form, why):
    """A5.2."""
    execution = make_execution(make_http_tool(), state=State.UNCONFIRMED)
    assert why in told(resolve(admin_client, execution, "it_ran", **form))
    assert Execution.objects.get().state == State.UNCONFIRMED


def test_an_admin_resolves_it_as_not_started(admin_client):
    """B8: it has failed, once; who comes later is told so."""
    execution = make_execution(state=State.UNCONFIRMED)
    assert "did not start it" in told(resolve(admin_client, execution, "it_did_not_run"))
    execution.refresh_from_db()
    assert (execution.state, execution.error) == (State.FAILED, "admin: the engine did not start it.")
    assert HistoryEntry.objects.get(object_id=execution.pk).actor_name == "admin"
    assert "Nothing to resolve" in told(resolve(admin_client, execution, "it_did_not_run"))


@pytest.mark.parametrize("what", ["it_ran", "it_did_not_run"])
def test_resolving_takes_a_post_of_somebody_who_may(staff_with, what):
    """B8: neither a link in a mail nor a colleague who may only look, and no forged form."""
    execution = make_execution(state=State.UNCONFIRMED)
    viewer = staff_with("view_execution")
    assert "Did it run?" not in text_of(viewer.get(page_url(execution)))
    assert resolve(viewer, execution, what, run_id="run-1").status_code == 403
    User.objects.all().delete()
    changer = staff_with("view_execution", "change_execution")
    assert changer.get(page_url(execution).replace("/change/", f"/{what}/")).status_code == 405
    changer.handler.enforce_csrf_checks = True
    assert resolve(changer, execution, what, run_id="run-1").status_code == 403
    assert Execution.objects.get().state == State.UNCONFIRMED


# Cancelling


@pytest.mark.django_db(transaction=True)
def test_what_waits_in_the_queue_is_cancelled_at_once(admin_client):
    """A7.5: no engine has it."""
    execution = make_queued()
    assert "Cancel this execution?" in admin_client.get(page_url(execution)).content.decode()
    assert "was cancelled" in told(press(admin_client, execution, "cancel"))
    execution.refresh_from_db()
    assert (execution.state, execution.cancel_requested_by) == (State.CANCELLED, "admin")


@pytest.mark.django_db(transaction=True)
def test_cancelling_reaches_the_engine_and_tells_what_came_of_it(admin_client, example_engine):
    """A7.5: the button stops the run at the engine, and the record says who asked."""
    source = make_source(base_url=example_engine.base_url, api_key=example_engine.api_key)
    refresh_source(source)
    enable_workflows(source.workflows.all())
    execution = create_execution(
        StartRequest(tool_name="countdown", arguments={"seconds": 300}, caller=AGENT, door=Execution.Door.MCP)
    )
    advance_due_executions()
    execution.refresh_from_db()
    assert execution.state == State.RUNNING
    assert "cancel" in told(press(admin_client, execution, "cancel")).lower()
    runs = example_engine.runs(workflow_id=execution.upstream_id)
    assert [run["status"] for run in runs if run["run_id"] == execution.run_id] == ["CANCELLED"]
    execution.refresh_from_db()
    assert execution.cancel_requested_by == "admin"
    assert "(just now) by admin" in text_of(admin_client.get(page_url(execution)))


@pytest.mark.django_db(transaction=True)
def test_cancelling_what_has_ended_says_so(admin_client):
    """A7.5: no button is offered, and a late press tells the truth."""
    execution = make_execution()
    assert "Cancel this execution?" not in admin_client.get(page_url(execution)).content.decode()
    assert "already completed" in told(press(admin_client, execution, "cancel"))


# The way to other pages, and to all of what is cut


@pytest.mark.databases("executions.admin.page", "executions.models.execution")
def test_executions_of_a_source_that_is_gone_can_still_be_chosen(admin_client):
    """A1.3, A8.2: the record keeps the name."""
    workflow = make_workflow(make_source("gone"))
    execution = make_execution(workflow)
    make_execution(make_workflow(make_source("here")))
    workflow.source.delete()
    page = admin_client.get(list_url(Execution))
    sources = next(spec for spec in page.context["cl"].filter_specs if spec.parameter_name == "source_name")
    assert [name for name, _ in sources.lookup_choices] == ["gone", "here"]
    assert found(admin_client, source_name="gone") == [execution]


def test_all_of_a_large_payload_can_be_had_as_a_file(admin_client, staff_with):
    """B3: as JSON that no browser shows, for those who may see executions."""
    large = make_execution(payload={"output": {"text": "<b>" + "y" * 150_000}})
    address = page_url(large).replace("/change/", "/payload/output/")
    assert f'href="{address}"' in admin_client.get(page_url(large)).content.decode()
    sent = admin_client.get(address)
    assert sent.json() == {"text": "<b>" + "y" * 150_000}
    assert sent["Content-Type"] == "application/json"
    assert sent["Content-Disposition"].startswith("attachment;")
    assert sent["X-Content-Type-Options"] == "nosniff"
    assert admin_client.get(address.replace("/output/", "/cut/")).status_code == 404
    assert staff_with("view_workflow").get(address).status_code == 403
    small = make_execution(payload={"output": {"text": "y"}})
    assert "/payload/" not in admin_client.get(page_url(small)).content.decode()


def test_answers_without_anything_in_them_are_left_out(admin_client):
    """B3."""
    execution = make_execution(payload={"start_answer": {}, "status_answer": {"status": "done"}})
    shown = text_of(admin_client.get(page_url(execution)))
    assert "The engine's response to the start" not in shown
    assert "The engine's last status" in shown


def test_an_execution_leads_to_its_source_where_one_may_see_it(admin_client, staff_with):
    """A8.2, B8."""
    execution = make_execution()
    assert execution.workflow is not None
    address = f'href="{page_url(execution.workflow.source)}"'
    assert address in admin_client.get(page_url(execution)).content.decode()
    assert address not in staff_with("view_execution").get(page_url(execution)).content.decode()


def test_progress_is_told_apart_from_what_the_engine_says_of_it(admin_client):
    """A8.2."""
    execution = make_execution(state=State.RUNNING, progress=7.5, progress_message="300 of 4000 s")
    assert "7.5 %, 300 of 4000 s" in text_of(admin_client.get(page_url(execution)))


def test_a_list_that_nothing_narrows_offers_no_way_to_all(admin_client):
    """B8."""
    make_execution(state=State.FAILED)
    assert "Show all" not in text_of(admin_client.get(list_url(Execution)))
    assert "1 result ( Show all )" in text_of(
        admin_client.get(list_url(Execution), {"state__exact": "failed"})
    )


def test_the_history_of_an_execution_is_offered_once_somebody_did_something(admin_client):
    """B8."""
    execution = make_execution(state=State.COMPLETED)
    assert "/history/" not in admin_client.get(page_url(execution)).content.decode()
    record_change(command("somebody"), [execution], "Pressed it.")
    assert "/history/" in admin_client.get(page_url(execution)).content.decode()


# While it runs


def live_url(page: str) -> str:
    """What the page asks for what is new; empty where it asks no more."""
    asked = re.search(r'hx-get="([^"]+)"', page)
    return html.unescape(asked[1]) if asked else ""


def test_a_page_follows_its_run_to_the_end_and_asks_no_more(admin_client):
    """Progress, timeline and result come without another page."""
    execution = make_execution(state=State.RUNNING, progress=40.0, payload={"output": None})
    page = admin_client.get(page_url(execution)).content.decode()
    assert 'aria-valuenow="40"' in page
    make_event(execution, "progress", "Half of it.")
    Execution.objects.update(progress=50.0)
    update = admin_client.get(live_url(page))
    shown = update.content.decode()
    assert 'aria-valuenow="50"' in shown and "Half of it." in shown
    # Somebody may be about to press a button or be filling in a form.
    assert "panel-buttons" not in shown and "execution-forms" not in shown
    Execution.objects.update(state=State.COMPLETED, finished_at=timezone.now())
    ExecutionPayload.objects.update(output={"answer": "forty-two"})
    shown = admin_client.get(live_url(shown)).content.decode()
    assert "forty-two" in shown and "panel-buttons" in shown and "Cancel" not in shown
    assert live_url(shown) == "" and "progressbar" not in shown


def test_a_page_of_a_run_says_that_its_reader_is_signed_out(admin_client):
    """B8: the page to sign in is not put into the middle of it."""
    execution = make_execution(state=State.RUNNING)
    address = live_url(admin_client.get(page_url(execution)).content.decode())
    assert "You are signed out" in Client().get(address).content.decode()
    Execution.objects.all().delete()
    assert "has been removed" in admin_client.get(address).content.decode()


def test_a_page_of_a_run_that_becomes_unconfirmed_asks_whether_it_ran(admin_client):
    """A8.2: the form to resolve it is there without a reload."""
    execution = make_execution(state=State.STARTING)
    address = live_url(admin_client.get(page_url(execution)).content.decode())
    Execution.objects.update(state=State.UNCONFIRMED)
    assert "It did not run: mark as failed" in text_of(admin_client.get(address))
