"""The list of workflows: found among thousands, told apart, and changed where they stand."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from catalogue.exposure import confirmed_catalogue, load_exposed_catalogue
from catalogue.models import HistoryEntry, Revision, Workflow
from catalogue.models.workflow import is_hinted
from mcp_bridge.tool_lists import cost_of_catalogue
from tests.admin.pages import answer_question, list_url, listed, run_action, text_of, told
from tests.admin.window import make_everything
from tests.factories import (
    make_execution,
    make_filter,
    make_source,
    make_toolset,
    make_workflow,
    make_workflows,
)
from tests.tables import table_row

pytestmark = pytest.mark.django_db

LIST = list_url(Workflow)


def found(client: Client, **query: str) -> set[str]:
    return {row.tool_name for row in listed(client, LIST, query).result_list}


def counted(client: Client, **query: str) -> dict[tuple[str, str], int]:
    """How many rows each choice of each filter has, as the page tells them."""
    shown = listed(client, LIST, query | {"_facets": "True"})
    counts = {}
    for one in list(shown.filter_specs):
        for name, field in next(iter(one.choices(shown)))["form"].fields.items():
            for value, label in field.choices:
                if count := re.search(r"\(([0-9]+)\)$", str(label)):
                    counts[name, str(value)] = int(count[1])
    return counts


def test_the_list_is_narrowed_by_the_reason_why_agents_do_not_see_a_workflow(admin_client):
    """A4.2: each reason by itself, and all of them together."""
    source = make_source()
    secret = make_filter("secret*", action="exclude")
    make_filter("pay*")
    make_workflow(source, name="pay_all")
    make_workflow(source, name="pay_off", enabled=False)
    make_workflow(source, name="pay_gone", missing_since=timezone.now())
    make_workflow(make_source(enabled=False), name="pay_dark")
    make_workflow(source, name="secret_things")
    make_workflow(source, name="report")
    rows = {
        "exposed": {"pay_all"},
        "disabled": {"pay_off"},
        "missing": {"pay_gone"},
        "source_off": {"pay_dark"},
        "filtered": {"secret_things", "report"},
        f"filter-{secret.pk}": {"secret_things"},
        "no-filter": {"report"},
        "hidden": {"pay_off", "pay_gone", "pay_dark", "secret_things", "report"},
    }
    assert {name: found(admin_client, visibility=name) for name in rows} == rows
    assert found(admin_client, visibility="exposed") == set(load_exposed_catalogue().workflows)


@pytest.mark.databases("catalogue.models.workflow")
def test_the_list_is_narrowed_by_what_is_said_of_a_workflow(admin_client, subtests):
    """A4.2, B4: tags, hints, toolsets and curation count as they are shown, whoever said so."""
    source, long_ago = make_source(), timezone.now() - timedelta(days=10)
    old = {"changed_at": long_ago, "first_seen_at": long_ago}
    make_workflow(source, name="a", tags=["Finance"], hints={"readOnlyHint": True}, **old)
    make_workflow(source, name="b", tags=["finance"], tags_override=["legal"], read_only_hint=True, **old)
    make_workflow(source, name="c", hints={"readOnlyHint": True, "destructiveHint": True}, **old)
    make_workflow(source, name="d", hints={"readOnlyHint": True}, read_only_hint=False, enabled=False, **old)
    make_workflow(source, name="e", title_override="E", first_seen_at=long_ago)
    make_toolset("finance", rules=["[ad]"], picked=[Workflow.objects.get(tool_name="b")])
    rows: dict[tuple[str, str], set[str]] = {
        ("tag", "finance"): {"a"},
        ("tag", "legal"): {"b"},
        ("hint", "readOnlyHint"): {"a", "b"},
        ("hint", "destructiveHint"): {"c"},
        ("hint", "none"): {"d", "e"},
        ("toolset", "finance"): {"a", "b", "d"},
        ("toolset", "-"): {"c", "e"},
        ("overridden", "any"): {"b", "d", "e"},
        ("overridden", "title"): {"e"},
        ("overridden", "tags"): {"b"},
        ("overridden", "hints"): {"b", "d"},
        ("overridden", "nothing"): {"a", "c"},
        ("changed", "week"): {"e"},
        ("changed", "new-week"): set(),
    }
    for (name, value), expected in rows.items():
        with subtests.test(filter=name, value=value):
            assert found(admin_client, **{name: value}) == expected


@pytest.mark.databases("catalogue.models.workflow")
def test_the_filter_by_hint_agrees_with_what_clients_are_told(admin_client):
    """B4: for every combination of the engine's and the curator's word."""
    source, words = make_source(), (None, True, False)
    for read_only in words:
        for destructive in words:
            engines = {"readOnlyHint": read_only, "destructiveHint": destructive}
            hints = {name: hint for name, hint in engines.items() if hint is not None}
            for ours, theirs in ((None, None), (True, None), (None, True), (False, None), (True, False)):
                make_workflow(source, hints=hints, read_only_hint=ours, destructive_hint=theirs)
    for hint in ("readOnlyHint", "destructiveHint"):
        expected = {row.tool_name for row in Workflow.objects.all() if row.effective_hints.get(hint)}
        assert set(Workflow.objects.filter(is_hinted(hint)).values_list("tool_name", flat=True)) == expected


def test_words_are_found_anywhere_and_globs_are_whole_names(admin_client):
    """A3.1."""
    source = make_source()
    make_workflow(source, name="billing_month", description="Sends invoices.")
    make_workflow(source, name="billing_year", description="Archives invoices.")
    make_workflow(source, name="old_billing_month", description="Sends invoices.")
    assert found(admin_client, q="billing_*") == {"billing_month", "billing_year"}
    assert found(admin_client, q="BILLING_* archives") == {"billing_year"}
    assert found(admin_client, q="*_mont?") == {"billing_month", "old_billing_month"}
    assert found(admin_client, q="invoices sends") == {"billing_month", "old_billing_month"}


def test_a_row_does_not_repeat_the_title_of_an_imported_tool(admin_client):
    """A3.1: of the description only its beginning is shown."""
    make_workflow(upstream_title="Add a watcher", description="Add a watcher\n\nNotifies a user of changes.")
    make_workflow(name="w", tool_name="w", upstream_title="Report", description="Reports the sales of a day.")
    shown = text_of(admin_client.get(list_url(Workflow)))
    assert "Add a watcher Notifies a user of changes." in shown
    assert "Report Reports the sales of a day." in shown
    assert "Add a watcher Add a watcher" not in shown


def test_a_tag_is_found_by_its_word_in_any_script(admin_client):
    """A3.1: also beside words from elsewhere; a curator's tags replace the engine's."""
    source = make_source()
    make_workflow(source, name="billing_month", tags=["Vertrieb"], tags_override=["営業", "month end"])
    make_workflow(source, name="billing_year", tags=["Vertrieb"])
    assert found(admin_client, q="営業") == found(admin_client, q='"Month End"') == {"billing_month"}
    assert found(admin_client, q="vertrieb billing") == {"billing_year"}
    assert found(admin_client, q="billing_* 営業") == {"billing_month"}


def test_the_list_costs_the_same_number_of_queries_for_few_rows_and_for_many(admin_client):
    """A4.2: with filters that ask what agents see, too."""
    source = make_source()
    make_filter("x*", action="exclude")
    make_toolset("finance", rules=["*"])
    query = {"visibility": "exposed", "toolset": "finance", "q": "workflow_* what"}
    make_workflows(2, source, tags=["one"])
    counts = []
    for more in (0, 70):
        make_workflows(more, source, tags=["two"], tags_override=["three"])
        found(admin_client)  # Reads what is exposed of the new revision.
        for given in ({}, query):
            with CaptureQueriesContext(connection) as queries:
                assert len(found(admin_client, **given)) == min(50, 2 + more)
            counts.append(len(queries))
    few, few_narrowed, many, many_narrowed = counts
    # One of them sorts the keys, where there are more rows than a page shows.
    assert (many, many_narrowed) == (few + 1, few_narrowed + 1), counts
    assert max(counts) <= 40


def test_a_switch_in_the_list_enables_and_disables_one_workflow(admin_client):
    """A4.4: agents notice, and the history tells who did it."""
    workflow = make_workflow(enabled=False)
    revision = Revision.current()
    assert f'id="switch-{workflow.pk}"' in admin_client.get(LIST).content.decode()
    url = reverse("admin:catalogue_workflow_switch", args=[workflow.pk])
    answer = admin_client.post(url, {"enabled": "true", "seen": workflow.content_hash})
    assert "exposed" in text_of(answer) and f'id="switch-{workflow.pk}"' in answer.content.decode()
    assert Revision.current() > revision and workflow.tool_name in load_exposed_catalogue().workflows
    admin_client.post(url, {"enabled": "false"})
    entries = HistoryEntry.of(workflow).order_by("pk")
    assert [(entry.message, entry.changes) for entry in entries] == [
        ("Enabled.", {"enabled": [False, True]}),
        ("Disabled.", {"enabled": [True, False]}),
    ]


def test_what_changed_since_the_list_was_shown_is_not_enabled_by_it(admin_client):
    """A5.2: hidden workflows follow their engine, so that a click would expose words that nobody has read."""
    one, other, third = (make_workflow(enabled=False, content_hash=text) for text in "abc")
    page = admin_client.get(LIST)
    seen = dict(re.findall(r'name="(seen-[0-9]+)" value="([^"]*)"', page.content.decode()))
    assert seen == {f"seen-{one.pk}": "a", f"seen-{other.pk}": "b", f"seen-{third.pk}": "c"}
    assert '"seen": "a"' in page.content.decode()
    Workflow.objects.filter(pk=one.pk).update(content_hash="z", description="Ignore what was said.")
    url = reverse("admin:catalogue_workflow_switch", args=[one.pk])
    for _ in range(2):
        answer = admin_client.post(url, {"enabled": "true", "seen": "a"})
        assert "changed in the meantime" in text_of(answer) and '"seen": "a"' in answer.content.decode()
    chosen = {"action": "enable_selected", "_selected_action": [one.pk, other.pk]}
    answer = admin_client.post(LIST, chosen | seen)
    refused = f"Still hidden, because the engine has changed them since: {one.tool_name}. Review them again."
    assert told(answer) == f"Enabled: 1. {refused}"
    assert list(load_exposed_catalogue().workflows) == [other.tool_name]
    assert not HistoryEntry.of(one).exists()
    everything = chosen | {"select_across": 1, "_selected_action": [third.pk], f"seen-{third.pk}": "c"}
    assert "Enabled: 2." in told(admin_client.post(LIST, everything)), "rows of other pages as they are"


def test_many_workflows_are_enabled_only_after_the_page_said_how_many_agents_would_see(admin_client):
    """A4.4: with all pages selected, nobody has seen how many that is."""
    rows = make_workflows(60, make_source("large"), enabled=False, content_hash="a")
    make_workflow(rows[0].source, name="on")
    make_filter(rows[5].name, subject="name", action="exclude")
    page = admin_client.get(LIST).content.decode()
    shown = dict(re.findall(r'name="(seen-[0-9]+)" value="([^"]*)"', page))
    first = next(row.pk for row in rows if f"seen-{row.pk}" in shown)
    Workflow.objects.filter(pk=first).update(content_hash="z")
    chosen = {"action": "enable_selected", "_selected_action": [first], "select_across": 1}
    question = admin_client.post(LIST, chosen | shown)
    assert "Enables 60 of 61 selected workflows. Newly visible to agents: 59 tools." in text_of(question)
    assert Workflow.objects.filter(enabled=True).count() == 1
    sent = question.content.decode()
    answers = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', sent))
    answer = told(admin_client.post(LIST, answers))
    assert "Enabled: 59." in answer, "as the list showed them, not as the question found them"
    assert "Still hidden, because the engine has changed them since" in answer
    few = {"action": "enable_selected", "_selected_action": [first]}
    assert "Enabled: 1." in told(admin_client.post(LIST, few)), "a few need no question"


@pytest.mark.parametrize(
    ("action", "asked", "done"),
    [
        (
            "disable_selected",
            "Disables 60 of 61 selected workflows. No longer visible to agents: 59 tools.",
            "Disabled: 60.",
        ),
        (
            "mark_selected_read_only",
            "Clients may call 61 workflows without asking.",
            "Marked as read-only: 61.",
        ),
        (
            "clear_selected_hints",
            "Your hints of 61 workflows are removed.",
            "Restored the engine's hints: 1.",
        ),
    ],
)
def test_whatever_agents_notice_of_many_workflows_is_done_only_after_the_page_said_how_many(
    admin_client, action, asked, done
):
    """A4.4: tools were taken from agents by one click, with all pages selected."""
    rows = make_workflows(60, make_source("large"))
    make_workflow(rows[0].source, name="off", enabled=False, destructive_hint=True)
    make_filter(rows[5].name, subject="name", action="exclude")
    before = list(Workflow.objects.order_by("pk").values())

    question = run_action(admin_client, action, rows[0], everything=True)

    assert asked in text_of(question)
    assert list(Workflow.objects.order_by("pk").values()) == before
    assert done in told(answer_question(admin_client, question))
    assert list(Workflow.objects.order_by("pk").values()) != before
    few = run_action(admin_client, action, *rows[:20])
    assert few.status_code == 302, "a few need no question"


@pytest.mark.parametrize("action", ["enable_selected", "tag_selected", "remove_selected"])
def test_an_answer_is_for_the_workflows_that_the_question_counted(admin_client, action):
    """A4.4: a listing or another curator adds rows to those that the list matches in the meantime."""
    gone = timezone.now() if action == "remove_selected" else None
    source = make_source("large")
    rows = make_workflows(60, source, enabled=False, category="reports", missing_since=gone)
    reports = f"{LIST}?category=reports"
    chosen = {"action": action, "_selected_action": [rows[0].pk], "select_across": 1}
    question = admin_client.post(reports, chosen)
    assert "60" in text_of(question)
    late = make_workflow(source, name="late", enabled=False, category="reports", missing_since=gone)
    answers = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', question.content.decode()))
    assert ": 60." in told(admin_client.post(reports, answers | {"tags": "checked"}))
    late.refresh_from_db()
    assert (late.enabled, late.shown_tags) == (False, []), "nobody was asked about it"


def test_tags_are_added_to_and_taken_from_many_at_once(admin_client):
    """A4.2: to the engine's; what comes to the engine's own again is nobody's decision."""
    source = make_source()
    a, b = make_workflow(source, tags=["one"]), make_workflow(source, tags_override=["two"])
    asked = run_action(admin_client, "tag_selected", a, b)
    assert "2 workflows selected" in text_of(asked)
    chosen = {"_selected_action": [a.pk, b.pk], "post": "yes"}
    assert "Enter at least one tag." in text_of(
        admin_client.post(LIST, chosen | {"action": "tag_selected", "tags": " , "})
    )
    answer = admin_client.post(LIST, chosen | {"action": "tag_selected", "tags": "two, new"})
    assert "Tagged: 2." in told(answer)
    assert shown_tags() == {a.pk: ["one", "two", "new"], b.pk: ["two", "new"]}
    admin_client.post(LIST, chosen | {"action": "untag_selected", "tags": "TWO, new"})
    assert shown_tags() == {a.pk: ["one"], b.pk: []}
    a.refresh_from_db()
    assert a.tags_override is None
    assert HistoryEntry.of(a).latest("pk").changes == {"tags_override": [["one", "two", "new"], None]}


def shown_tags() -> dict[int, list[str]]:
    return {row.pk: row.shown_tags for row in Workflow.objects.all()}


def test_everything_that_matches_is_added_to_a_toolset(admin_client):
    """A4.2: beyond the page that is shown; what is there already stays."""
    workflows = make_workflows(60)
    toolset = make_toolset("finance", picked=workflows[:1])
    chosen = {"_selected_action": [workflows[0].pk], "select_across": "1", "post": "yes"}
    answer = admin_client.post(
        LIST, chosen | {"action": "add_selected_to_toolset", "toolset": str(toolset.pk)}
    )
    assert "59" in told(answer)
    assert len(load_exposed_catalogue().toolsets["finance"].workflows) == 60
    before, after = HistoryEntry.of(toolset).get().changes["picked"]
    assert (len(before), len(after)) == (1, 60)
    assert "Added to the toolset finance." in HistoryEntry.of(workflows[5]).get().message


def test_a_row_tells_what_its_tool_costs(admin_client):
    """D4: the same figures as the whole list's."""
    make_workflow(description="Short.", input_schema={"type": "object", "description": "word " * 500})
    make_workflow(description="Short.", enabled=False)
    page = admin_client.get(LIST, {"o": "1"})
    costs = [row.tokens for row in page.context["cl"].result_list]
    listed = cost_of_catalogue(confirmed_catalogue()).full.tokens
    assert 600 < max(costs) < listed and 0 < min(costs) < 100


@pytest.mark.databases("catalogue.models.workflow")
def test_each_filter_tells_how_many_rows_its_choices_leave(admin_client, subtests):
    """A4.2: of those that the other filters and the search leave."""
    make_everything(User.objects.get())
    source, secret = make_source(), make_filter("secret*", action="exclude", position=0)
    make_workflow(source, name="secret_plan", tags=["Finance", "Äpfel"], tags_override=["legal", "100%"])
    make_workflow(source, name="plan_b", tags=["FINANCE", "äpfel", 'so "called"'], category="billing")
    make_workflow(make_source(enabled=False), name="plan_c", tags=["finance", "finance", "a_b", "axb"])
    narrowed = {"q": "pl*", "tag": "finance", "visibility": "exposed", "source__id__exact": str(source.pk)}
    queries: list[dict[str, str]] = [{}, narrowed]
    for query in queries:
        counts = counted(admin_client, **query)
        assert {name for name, _ in counts} >= {"visibility", "tag", "category", "review", "toolset", "hint"}
        for (name, value), count in counts.items():
            if query and not count:
                continue
            with subtests.test(query=query, name=name, value=value):
                assert count == len(found(admin_client, **query | {name: value}))
    assert counted(admin_client)["visibility", f"filter-{secret.pk}"] == 1
    assert counted(admin_client)["tag", "finance"] == 3


def test_the_counts_of_the_filters_cost_the_same_number_of_queries_however_many_choices_there_are(
    admin_client,
):
    """A4.2"""
    query = {"visibility": "exposed", "toolset": "finance", "q": "workflow_*"}
    make_toolset("finance", rules=["*"])
    make_filter("*")
    make_workflows(1, tags=["tag"])
    make_workflow(enabled=False)
    costs = []
    for more in (0, 12):
        for number in range(more):
            make_workflow(category=f"category-{number}", tags=[f"tag-{number}"])
            make_toolset(rules=["*"])
            make_filter(f"x{number}*", action="exclude")
        for given in ({}, query):
            # Reads what is exposed of the new revision.
            counted(admin_client, **given)
            with CaptureQueriesContext(connection) as queries:
                assert counted(admin_client, **given)["visibility", "exposed"] == 1 + more
            costs.append(len(queries))
    few, few_narrowed, many, many_narrowed = costs
    assert (many, many_narrowed) == (few, few_narrowed), costs
    assert max(costs) <= 58


def test_selected_workflows_are_removed_if_the_engine_no_longer_lists_them(admin_client):
    """A1.3: after a question, and not those whose history would lose them."""
    source, gone = make_source(), timezone.now()
    present, ran = make_workflow(source), make_workflow(source, missing_since=gone)
    removed = make_workflow(source, missing_since=gone)
    make_execution(ran)

    asked = run_action(admin_client, "remove_selected", present, ran, removed)
    assert "Of 3 workflows, those that their engine no longer lists are removed" in text_of(asked)
    assert Workflow.objects.count() == 3
    chosen = {"_selected_action": [present.pk, ran.pk, removed.pk], "post": "yes"}
    answer = admin_client.post(LIST, chosen | {"action": "remove_selected"})

    assert told(answer) == (
        "Removed: 1. Kept: 1 that the engine lists; hide them with Disable, and 1 with executions on record, "
        "until the retention removes these."
    )
    assert set(Workflow.objects.all()) == {present, ran}


@pytest.fixture
def thousands(few_parameters: int) -> list[Workflow]:
    """More rows than a statement may have parameters; SQLite's own default is 32,766."""
    hidden: dict[str, Any] = {"source": make_source("large"), "category": "reports", "enabled": False}
    return Workflow.objects.bulk_create(
        Workflow(upstream_id=name, name=name, tool_name=name, content_hash="a", **hidden)
        for name in (f"report_{number}" for number in range(few_parameters + 200))
    )


RESULTS_OF_ALL_PAGES = {
    "enable_selected": "Enabled: 1,200.",
    "disable_selected": "Disabled: 0.",
    "tag_selected": "Tagged: 1200.",
    "untag_selected": "Removed tags from: 0.",
    "add_selected_to_toolset": "Added to <a",
    "mark_selected_read_only": "Marked as read-only: 1,200.",
    "clear_selected_hints": "Restored the engine's hints: 0.",
    "remove_selected": "Removed: 0.",
    "accept_selected": "None of the selected workflows has a held change.",
}


def test_an_action_takes_more_workflows_than_a_statement_takes_parameters(admin_client, thousands, subtests):
    """A4.2: all pages of a list that filters and a search have narrowed."""
    toolset, hidden = make_toolset("finance"), f"{LIST}?visibility=disabled&toolset=-&q=report_*"
    for action, result in RESULTS_OF_ALL_PAGES.items():
        with table_row(subtests, action):
            admin_client.cookies.pop("messages", None)
            chosen = {"action": action, "_selected_action": [thousands[0].pk], "select_across": 1}
            answer = admin_client.post(hidden, chosen)
            if answer.status_code == 200:
                question = answer.content.decode()
                sent = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', question))
                answer = admin_client.post(hidden, sent | {"tags": "checked", "toolset": str(toolset.pk)})
            assert result in told(answer)


def test_a_filter_finds_more_workflows_than_a_statement_takes_parameters(admin_client, thousands):
    for query in ("visibility=hidden", "toolset=-"):
        assert listed(admin_client, f"{LIST}?{query}").result_count == len(thousands)
    Workflow.objects.update(enabled=True)
    make_toolset("finance", picked=thousands)
    assert listed(admin_client, f"{LIST}?toolset=finance").result_count == len(thousands)
