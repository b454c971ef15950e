"""What dashboards need besides lists: a scope that only reads, few fields, few bytes, quick pages, tables."""

import csv
from collections.abc import Callable
from datetime import timedelta
from io import StringIO

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import get_resolver
from django.utils import timezone
from rest_framework.test import APIClient

from catalogue import long_lists
from catalogue.access import Scope
from catalogue.history import command, record_change
from catalogue.models import Source, Workflow
from executions.models import Approval, Execution, State
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import create_token
from tests.api.clients import TokenClient, administrator, agent, problem_paths, staff_session
from tests.api.test_history import SOURCE, TOOLSET, WORKFLOW
from tests.declared_tools import declared
from tests.factories import (
    make_discovery_run,
    make_execution,
    make_filter,
    make_source,
    make_toolset,
    make_workflow,
    make_workflow_request,
)

pytestmark = pytest.mark.django_db


def reader() -> TokenClient:
    return TokenClient(Scope.VIEW)


def everything() -> dict[str, str]:
    """Every address that is read by GET, of objects that exist."""
    source = make_source("orders")
    workflow = make_workflow(source, tool_name="report", enabled=False)
    make_toolset("finance", picked=[workflow])
    make_filter("hidden", action="exclude")
    run, execution = make_discovery_run(source), make_execution(workflow)
    request, token = make_workflow_request(), create_token(name="someone")[0]
    details = {
        "sources": "orders", "workflows": "report", "toolsets": "finance", "discovery-runs": run.pk,
        "executions": execution.pk, "workflow-requests": request.pk, "tokens": token.pk,
        "connectors": "simplified",
    }  # fmt: skip
    lists = [*details, "result-cache", "tools", "settings", "catalogue/export"]
    return {f"/api/{name}/": f"/api/{name}/{key}/" for name, key in details.items()} | {
        f"/api/{name}/": f"/api/{name}/" for name in lists if name not in details
    }


def test_a_token_that_only_reads_sees_by_get_what_an_administrator_sees():
    """The same bytes, of each list and each object."""
    administrators, readers = administrator(), reader()
    for of_list, of_one in everything().items():
        for address in (of_list, of_one):
            seen = readers.get(address)
            assert seen.status_code == 200, (address, seen.content)
            expected = administrators.get(address)
            if address != "/api/tokens/":
                assert seen.content == expected.content, address


def test_a_token_that_only_reads_changes_nothing():
    """Every address refuses every other method, and nothing is written."""
    everything()
    client, tried = reader(), 0
    before = Source.objects.get().updated_at, Execution.objects.get().state
    api = next(item for item in get_resolver().url_patterns if str(item.pattern) == "api/")
    for pattern in api.url_patterns:
        path = f"/api/{pattern.pattern}".replace("/?$", "/").replace("^", "")
        for method in set(getattr(pattern.callback, "actions", {})) - {"get", "head"}:
            for known in (SOURCE, WORKFLOW, TOOLSET, f"/api/executions/{Execution.objects.get().pk}/"):
                head = known.rstrip("/").rsplit("/", 1)[0]
                if not path.startswith(f"{head}/"):
                    continue
                tail = path.removeprefix(f"{head}/").partition(")/")[2]
                address = known + tail.replace("\\", "") if "(?P" in path else path
                refused = getattr(client, method)(address, {}, format="json")
                assert refused.status_code == 403, (method, address, refused.content)
                tried += 1
    assert tried >= 15
    assert (Source.objects.get().updated_at, Execution.objects.get().state) == before


def test_reading_everything_makes_nobody_the_master_of_others_runs():
    """Of both scopes together, cancelling reaches one's own runs only."""
    execution = make_execution(state="running")
    both = TokenClient(Scope.VIEW, Scope.RUN)
    assert both.get(f"/api/executions/{execution.pk}/").status_code == 200
    assert both.post(f"/api/executions/{execution.pk}/cancel/").status_code == 404
    execution.refresh_from_db()
    assert execution.cancel_requested_at is None


def test_a_token_that_reads_everything_is_not_bound_to_a_toolset():
    toolset = make_toolset("finance")
    token = AccessToken(name="x", digest="d", prefix="p", scopes=[Scope.VIEW.value], toolset=toolset)
    with pytest.raises(Exception, match="sees everything, so it cannot be bound to a toolset"):
        token.full_clean()


def test_tokens_are_listed_without_what_would_let_anybody_in():
    client = administrator()
    toolset = make_toolset("finance")
    bound, text = create_token(name="agent", toolset=toolset)
    create_token(name="gone")[0].revoke()
    rows = {row["name"]: row for row in client.get("/api/tokens/").json()["results"]}
    assert (rows["agent"]["toolset"], rows["agent"]["usable"], rows["gone"]["usable"]) == (
        "finance",
        True,
        False,
    )
    answer = client.get(f"/api/tokens/{bound.pk}/")
    assert answer.json()["caller"] == f"token:{bound.pk}"
    assert bound.digest not in answer.content.decode() and text not in answer.content.decode()
    assert [row["name"] for row in client.get("/api/tokens/?usable=false").json()["results"]] == ["gone"]
    assert client.get("/api/tokens/?toolset=finance").json()["count"] == 1
    assert client.delete(f"/api/tokens/{bound.pk}/").status_code == 405
    assert agent().get("/api/tokens/").status_code == 403
    assert staff_session("view_source").get("/api/tokens/").status_code == 403


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("sources", "name,kind"), ("workflows", "tool_name"), ("toolsets", "slug,cost"),
        ("discovery-runs", "id,outcome"), ("executions", "id,state,error"), ("tokens", "name"),
    ],
)  # fmt: skip
def test_an_answer_has_the_fields_that_were_asked_for(name, wanted):
    """Of lists and of single objects; a field that there is not is refused with those that there are."""
    address = f"/api/{name}/"
    of_one, client = everything()[address], administrator()
    for row in (
        client.get(f"{address}?fields={wanted}").json()["results"][0],
        client.get(f"{of_one}?fields={wanted}").json(),
    ):
        assert set(row) == set(wanted.split(","))
    for wrong in ("nothing", "", ","):
        refused = client.get(f"{address}?fields={wrong}")
        assert (refused.status_code, problem_paths(refused)) == (400, ["?fields"])


def test_what_has_not_changed_is_not_sent_again():
    """304 for lists and objects; a change, another caller's view or another question has another tag."""
    client = administrator()
    workflow = make_workflow(tool_name="report")
    for address in ("/api/workflows/", "/api/workflows/report/", "/api/executions/", "/api/settings/"):
        first = client.get(address)
        tag = first["ETag"]
        again = client.get(address, HTTP_IF_NONE_MATCH=tag)
        assert (again.status_code, again.content, again["ETag"]) == (304, b"", tag)
        assert again["Cache-Control"] == "no-store"
        assert {"Accept", "Authorization", "Cookie"} <= set(again["Vary"].split(", "))
    tag = client.get("/api/workflows/")["ETag"]
    assert client.get("/api/workflows/?fields=tool_name", HTTP_IF_NONE_MATCH=tag).status_code == 200
    assert agent().get("/api/workflows/", HTTP_IF_NONE_MATCH=tag).status_code == 200
    workflow.title_override = "Changed"
    workflow.save()
    changed = client.get("/api/workflows/", HTTP_IF_NONE_MATCH=tag)
    assert (changed.status_code, changed.json()["results"][0]["title"]) == (200, "Changed")
    # Health moves no revision.
    tag = client.get("/api/sources/")["ETag"]
    Source.objects.update(health_message="401 Unauthorized")
    assert client.get("/api/sources/", HTTP_IF_NONE_MATCH=tag).status_code == 200


@pytest.mark.parametrize("condition", ["If-Match", "If-Unmodified-Since"])
def test_a_change_on_a_condition_is_refused_and_not_made_without_it(condition):
    client, workflow = administrator(), make_workflow(tool_name="report")
    tag = client.get("/api/workflows/report/")["ETag"]

    refused = client.patch(
        "/api/workflows/report/", {"title": "Mine"}, format="json", headers={condition: tag}
    )
    assert (refused.status_code, condition in refused.json()["detail"]) == (400, True), refused.json()
    workflow.refresh_from_db()
    assert workflow.title_override == ""
    assert client.get("/api/workflows/report/", headers={condition: tag}).status_code == 200


def test_nobody_gets_a_304_without_being_let_in():
    tag = administrator().get("/api/sources/")["ETag"]
    assert APIClient().get("/api/sources/", HTTP_IF_NONE_MATCH=tag).status_code == 401
    assert agent().get("/api/sources/", HTTP_IF_NONE_MATCH="*").status_code == 403


def test_cursor_pages_lead_through_all_executions_while_others_are_added():
    """Rows of one moment too; none comes twice, none is missed, and nothing is counted."""
    client, now = administrator(), timezone.now()
    made = [make_execution(created_at=now - timedelta(seconds=number // 3)).pk for number in range(10)]
    seen, address = [], "/api/executions/?cursor=&page_size=3&fields=id"
    while address:
        page = client.get(address).json()
        assert set(page) == {"next", "results"}
        seen += [row["id"] for row in page["results"]]
        address = page["next"]
        make_execution(created_at=now + timedelta(seconds=1))
    assert sorted(seen) == sorted(map(str, made))
    narrowed = client.get("/api/executions/?cursor=&state=failed").json()
    assert narrowed == {"next": None, "results": []}
    assert client.get(f"/api/executions/?cursor=&search={made[0]}").json()["results"][0]["id"] == str(made[0])
    assert problem_paths(client.get("/api/executions/?cursor=x")) == ["?cursor"]
    assert problem_paths(client.get("/api/executions/?cursor=&page=2")) == ["?page"]
    assert problem_paths(client.get("/api/executions/?cursor=&ordering=state")) == ["?ordering"]
    numbered = {"count", "count_is_exact", "next", "previous", "results"}
    assert set(client.get("/api/executions/").json()) == numbered


def _ask(number: int) -> None:
    make_workflow_request(created_at=timezone.now() - timedelta(seconds=number // 2))


def _await_approval(number: int) -> None:
    moment = timezone.now() - timedelta(seconds=number // 2)
    execution = make_execution(state="unapproved")
    Approval.objects.create(execution=execution, reason="x", requested_at=moment, expires_at=moment)


LONG_LISTS: dict[str, Callable[[int], object]] = {
    "executions": lambda number: make_execution(created_at=timezone.now() - timedelta(seconds=number // 2)),
    "history": lambda number: record_change(command("somebody"), [make_workflow(make_source())], "Changed."),
    "discovery-runs": lambda number: make_discovery_run(make_source()),
    "workflow-requests": _ask,
    "approvals": _await_approval,
}


@pytest.mark.parametrize("name", LONG_LISTS)
@pytest.mark.databases("catalogue.long_lists")
def test_a_list_that_is_longer_than_is_counted_leads_to_its_last_row_at_the_same_price(name, monkeypatch):
    """Numbered pages as far as is counted, which the count says, then pages by position."""
    client, key = administrator(), "execution" if name == "approvals" else "id"
    for number in range(12):
        LONG_LISTS[name](number)
    exact = client.get(f"/api/{name}/?page_size=3").json()
    assert (exact["count"], exact["count_is_exact"], len(exact["results"])) == (12, True, 3)
    monkeypatch.setattr(long_lists, "COUNTED", 5)
    seen, costs, address = [], [], f"/api/{name}/?page_size=3"
    while address:
        with CaptureQueriesContext(connection) as queries:
            page = client.get(address).json()
        costs.append(len(queries))
        if "count" in page:
            assert (page["count"], page["count_is_exact"]) == (5, False)
        seen += [row[key] for row in page["results"]]
        address = page["next"]
    assert len(seen) == len(set(seen)) == 12
    assert max(costs) <= 9, costs
    for beyond in ("3", "0", "-1", "x", "9" * 5000):
        refused = client.get(f"/api/{name}/?page_size=3&page={beyond}")
        assert refused.status_code == 404 and "`cursor`" in refused.json()["detail"]


@pytest.mark.databases("catalogue.long_lists")
def test_another_order_sorts_as_many_of_the_newest_as_are_counted(monkeypatch):
    client, now = administrator(), timezone.now()
    made = [
        make_execution(created_at=now - timedelta(hours=number), finished_at=now - timedelta(minutes=number))
        for number in range(8)
    ]
    monkeypatch.setattr(long_lists, "COUNTED", 5)
    page = client.get("/api/executions/?ordering=finished_at&page_size=200").json()
    assert [row["id"] for row in page["results"]] == [str(each.pk) for each in reversed(made[1:6])]
    assert (page["count"], page["count_is_exact"], page["next"]) == (5, False, None)


def table(client: APIClient, address: str) -> list[dict[str, str]]:
    response = client.get(address)
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in response["Content-Disposition"]
    return list(csv.DictReader(StringIO(response.getvalue().decode())))


@pytest.mark.parametrize("query", ["", "?format=csv"])
def test_a_table_is_also_what_a_client_gets_that_accepts_nothing_else(query):
    """Generated clients send the media types of openapi.yaml as `Accept`."""
    client, execution = administrator(), make_execution()

    response = client.get(f"/api/executions/{query}", HTTP_ACCEPT="text/csv")

    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert str(execution.pk) in response.getvalue().decode()
    both = client.get("/api/executions/", HTTP_ACCEPT="text/csv, application/json")
    asked_for_pages = client.get("/api/executions/?format=json&page_size=1", HTTP_ACCEPT="text/csv")
    assert {both["Content-Type"], asked_for_pages["Content-Type"]} == {"application/json"}
    refused = client.get("/api/executions/?state=odd", HTTP_ACCEPT="text/csv")
    assert (refused.status_code, problem_paths(refused)) == (400, ["?state"])


def test_executions_come_as_a_table_of_all_their_rows():
    """Filtered like the list, with its columns and values."""
    client = administrator()
    workflow = make_workflow(tool_name="report")
    for _ in range(3):
        make_execution(workflow, progress_message='Half, "done"\nsoon')
    make_execution(workflow, state="failed", error="401 Unauthorized", error_kind="execution")
    rows = table(client, "/api/executions/?format=csv")
    listed = client.get("/api/executions/").json()["results"]
    assert [row["id"] for row in rows] == [row["id"] for row in listed]
    assert list(rows[0]) == [
        column for name in listed[0] for column in (("error_kind", "error") if name == "error" else (name,))
    ]
    assert (rows[0]["error"], rows[0]["error_kind"], rows[0]["success"]) == (
        "401 Unauthorized",
        "execution",
        "false",
    )
    assert (rows[1]["progress_message"], rows[1]["error"]) == ('Half, "done"\nsoon', "")
    assert table(client, "/api/executions/?format=csv&state=failed&fields=tool,state") == [
        {"tool": "report", "state": "failed"}
    ]
    assert problem_paths(client.get("/api/executions/?format=csv&page=2")) == ["?page"]
    assert problem_paths(client.get("/api/executions/?format=xml")) == ["?format"]
    make_execution(caller="token:0")
    assert table(agent(), "/api/executions/?format=csv") == []


def test_lists_have_the_values_that_single_rows_have():
    """They are read column by column, and rows share what is equal."""
    client = administrator()
    plain, edited = make_workflow(), make_workflow(tags=["a"], tags_override=["b"], title_override="Report")
    make_execution(plain, state="failed", error="401 Unauthorized", error_kind="execution")
    make_execution(edited, progress_message="Half")
    for address, key in (("workflows", "tool_name"), ("executions", "id")):
        rows = client.get(f"/api/{address}/").json()["results"]
        assert len(rows) == 2
        for row in rows:
            alone = client.get(f"/api/{address}/{row[key]}/").json()
            for name, value in row.items():
                shown = alone[name]
                if isinstance(value, dict) and name != "hints":
                    shown = {inner: shown[inner] for inner in value}
                assert value == shown, (address, name)


def test_workflows_come_as_a_table_of_what_their_caller_sees():
    """In the chosen order; what the engine and a curator say has columns of its own for administrators."""
    make_workflow(tool_name="report", tags=["a", "b"], title_override="Report", read_only_hint=True)
    make_workflow(tool_name="bill", enabled=False, description="-1+1")

    rows = table(administrator(), "/api/workflows/?format=csv&ordering=-tool_name")

    assert [row["tool_name"] for row in rows] == ["report", "bill"]
    shown = ("title", "tags", "hints", "curator_title", "curator_enabled", "upstream_tags", "upstream_author")
    assert [rows[0][name] for name in shown] == [
        "Report", "a, b", '{"readOnlyHint": true}', "Report", "true", "a, b", "",
    ]  # fmt: skip
    assert (rows[1]["description"], rows[1]["curator_enabled"]) == ("'-1+1", "false")
    [seen] = table(agent(), "/api/workflows/?format=csv")
    assert (seen["tool_name"], seen["curator_enabled"], seen["upstream_id"]) == ("report", "", "")
    assert table(reader(), "/api/workflows/?format=csv&enabled=false&fields=tool_name,exposed") == [
        {"tool_name": "bill", "exposed": "false"}
    ]
    assert problem_paths(administrator().get("/api/workflows/?format=csv&page=2")) == ["?page"]
    assert problem_paths(administrator().get("/api/workflows/?format=xml")) == ["?format"]


@pytest.mark.parametrize(
    "begin", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"]
)
def test_no_cell_of_a_table_is_computed(begin):
    """Engines write errors, and spreadsheets compute what begins like a formula."""
    text = f"{begin}HYPERLINK(0)"
    make_execution(progress_message=text)
    assert table(administrator(), "/api/executions/?format=csv")[0]["progress_message"] == f"'{text}"


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize("text", ["a{}=1+1", 'a{}"=1+1', "a{} @SUM(A1)", "a\n=1+1", "a\r\n-1{}+1"])
def test_no_cell_is_computed_where_spreadsheets_separate_by_another_character(text, separator):
    """Excel separates by semicolons in German, and then takes no quotation mark in a line for one."""
    make_execution(progress_message=text.format(separator), error="x")
    response = administrator().get("/api/executions/?format=csv&fields=id,progress_message,error")
    written = b"".join(response.streaming_content).decode()
    cells = [cell for row in csv.reader(written.splitlines(), delimiter=separator) for cell in row]
    assert not [cell for cell in cells if cell.strip(' "').startswith(("=", "+", "-", "@"))], cells


def test_a_table_of_many_rows_is_sent_in_parts():
    """A page in memory at a time, whatever there is."""
    source = make_workflow()
    make_execution(source)
    first = Execution.objects.get()
    copies = []
    for _ in range(1_250):
        first.pk = None
        copies.append(
            Execution(
                **{
                    f.attname: getattr(first, f.attname)
                    for f in Execution._meta.concrete_fields
                    if not f.primary_key
                }
            )
        )
    Execution.objects.bulk_create(copies)
    response = administrator().get("/api/executions/?format=csv&fields=id")
    parts = list(response.streaming_content)
    assert len(parts) == 4
    assert sum(part.count(b"\n") for part in parts) == 1_252


def test_a_list_without_filters_ignores_no_parameter_either():
    client = administrator()
    for name in ("connectors", "filters", "standing-approvals"):
        for wrong in ("colour=red", "page_size=0", "fields=colour"):
            answer = client.get(f"/api/{name}/?{wrong}")
            assert answer.status_code == 400, (name, wrong)
            assert problem_paths(answer) == [f"?{wrong.partition('=')[0]}"]


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("cursor=x", "follow `next`"),
        ("created_after=yesterday", "2026-11-25T09:30:00Z"),
        ("created_after=2026-11-25T09:30:00+00:00", "%2B"),  # The plus sign of an address is a space
    ],
)
def test_a_refusal_says_how_a_cursor_or_a_time_is_written(query, hint):
    [problem] = administrator().get(f"/api/executions/?{query}").json()["errors"]
    assert hint in problem["message"]


def test_what_can_be_chosen_is_named_where_something_else_was():
    client = administrator()
    (state,) = client.get("/api/executions/?state=gone").json()["errors"]
    assert "The choices are unapproved, pending, " in state["message"]
    (ordering,) = client.get("/api/workflows/?ordering=colour").json()["errors"]
    assert "The choices are tool_name, -tool_name" in ordering["message"]


def test_the_fields_of_kinds_tools_and_statistics_are_chosen_as_of_other_lists():
    client = administrator()
    assert client.post("/api/tools/", declared("get_order"), format="json").status_code == 201
    make_execution(Workflow.objects.get(), state=State.COMPLETED)
    for address, field in (
        ("/api/connectors/", "kind"),
        ("/api/connectors/http/", "kind"),
        ("/api/tools/", "name"),
        ("/api/tools/get_order/", "name"),
        ("/api/statistics/", "calls"),
    ):
        answer = client.get(f"{address}?fields={field}").json()
        rows = answer.get("results", [answer])
        assert [set(row) for row in rows] == [{field}] * len(rows) and rows, address
        assert problem_paths(client.get(f"{address}?fields=colour")) == ["?fields"], address


def test_all_that_is_wrong_with_a_body_is_told_at_once():
    answer = agent().post("/api/executions/", {"colour": "red", "wait_seconds": "x"}, format="json")
    assert set(problem_paths(answer)) == {"/colour", "/tool", "/wait_seconds"}
