"""The list of workflows: found among thousands, told apart, and changed where they stand."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from catalogue.exposure import confirmed_catalogue, load_exposed_catalogue
from catalogue.models import HistoryEntry, Revision, SavedView, Toolset, Workflow
from catalogue.models.workflow import is_hinted
from mcp_bridge.tool_lists import cost_of_catalogue
from tests.admin.pages import answer_question, list_url, listed, page_url, run_action, text_of, told
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
    """How many rows each choice of each facet has, as the page tells them."""
    shown = listed(client, LIST, query)
    return {
        (facet.name, choice.value): choice.count
        for facet in shown.filter_specs
        for choice in facet.choices(shown)
    }


def read_seen(page: Any) -> dict[str, str]:
    """The field with the content hashes that a page showed."""
    return {"seen": re.findall(r'name="seen" value="([^"]*)"', page.content.decode())[0]}


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
        ("is", "read-only"): {"a", "b"},
        ("is", "destructive"): {"c"},
        ("not-is", "read-only"): {"c", "d", "e"},
        ("not-tag", "finance"): {"b", "c", "d", "e"},
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
    seen = read_seen(page)
    assert set(seen["seen"].split(",")) == {f"{one.pk}:a", f"{other.pk}:b", f"{third.pk}:c"}
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
    everything = chosen | {"select_across": 1, "_selected_action": [third.pk], "seen": f"{third.pk}:c"}
    assert "Enabled: 2." in told(admin_client.post(LIST, everything)), "rows of other pages as they are"


def test_many_workflows_are_enabled_only_after_the_page_said_how_many_agents_would_see(admin_client):
    """A4.4: with all pages selected, nobody has seen how many that is."""
    rows = make_workflows(60, make_source("large"), enabled=False, content_hash="a")
    make_workflow(rows[0].source, name="on")
    make_filter(rows[5].name, subject="name", action="exclude")
    shown = read_seen(admin_client.get(LIST))
    first = next(row.pk for row in rows if f"{row.pk}:a" in shown["seen"].split(","))
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
        assert {name for name, _ in counts} >= {
            "visibility",
            "tag",
            "category",
            "toolset",
            "is",
            "source__id__exact",
        }
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


def test_a_facet_takes_several_values_and_excludes_others(admin_client):
    """Any of the chosen values, none of the excluded ones, and each chip takes one away."""
    source = make_source()
    make_workflow(source, name="a", tags=["billing"], category="reports")
    make_workflow(source, name="b", tags=["support", "old"], category="reports")
    make_workflow(source, name="c", tags=["billing", "OLD"], category="mail")
    make_workflow(source, name="d", category="mail")
    query: dict[str, Any] = {"tag": ["billing", "support"], "not-tag": ["old"]}
    assert found(admin_client, tag=["billing", "support"]) == {"a", "b", "c"}  # type: ignore[arg-type]
    assert found(admin_client, **query) == {"a"}
    assert found(admin_client, **query, category="mail") == set()
    assert found(admin_client, tag="nobody's") == set()

    chips = listed(admin_client, LIST, query).chips
    assert {chip.label.lower(): chip.is_excluded for chip in chips} == {
        "billing": False,
        "support": False,
        "old": True,
    }
    left = {chip.label.lower(): found_at(admin_client, chip.removal) for chip in chips}
    assert left == {"billing": set(), "support": {"a"}, "old": {"a", "b", "c"}}
    assert found_at(admin_client, listed(admin_client, LIST, query).without_filters) == {"a", "b", "c", "d"}


def found_at(client: Client, address: str) -> set[str]:
    return {row.tool_name for row in listed(client, LIST + address).result_list}


def test_hostile_addresses_of_the_list_are_refused(admin_client):
    for query in (
        {"tag": [str(number) for number in range(51)]},
        {"not-category": "x" * 256},
        {"nothing": "x"},
    ):
        answer = admin_client.get(LIST, query)
        assert (answer.status_code, answer.headers["Location"]) == (302, LIST), query
    for query in ({"source__id__exact": "x"}, {"is": "x"}, {"visibility": "x"}, {"toolset": "x"}):
        assert found(admin_client, **query) == set()
    assert admin_client.get(LIST, {"q": 'tag:"open'}).context["cl"].result_count == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("enabled__exact=0", "?not-is=enabled"),
        ("available=missing&use=called", "?is=missing&use=called"),
        ("q=a%20b&review=new", "?is=new-held&q=a+b"),
    ],
)
def test_addresses_of_former_filters_are_those_of_facets(admin_client, before, after):
    assert listed(admin_client, f"{LIST}?{before}").get_query_string() == after


def test_toolsets_are_a_facet_for_those_who_may_see_toolsets(client):
    reader = User.objects.create_user("reader", is_staff=True)
    reader.user_permissions.set(Permission.objects.filter(codename="view_workflow"))
    client.force_login(reader)
    make_toolset("secret", rules=["*"])
    make_workflow()
    assert "toolset" not in {name for name, _ in counted(client)}
    assert client.get(LIST, {"toolset": "secret"}).status_code == 302


def test_an_action_is_for_selected_rows_that_the_filters_no_longer_leave(admin_client):
    """A selection outlives filters and pages; what it enables is as the pages showed it."""
    shown, elsewhere, changed, other = (make_workflow(enabled=False, content_hash=text) for text in "abcd")
    Workflow.objects.filter(pk=changed.pk).update(content_hash="z")
    chosen = f"{elsewhere.pk}:b,{changed.pk}:c,nonsense,99999999999999999999:x"
    sent = {"action": "enable_selected", "index": "0", "chosen": chosen, "seen": f"{shown.pk}:a"}
    answer = admin_client.post(f"{LIST}?q={other.tool_name}", sent | {"_selected_action": [shown.pk]})
    assert answer.status_code == 302
    assert set(Workflow.objects.filter(enabled=True)) == {shown, elsewhere}
    admin_client.post(f"{LIST}?q=nothing", sent | {"action": "disable_selected"})
    assert set(Workflow.objects.filter(enabled=True)) == {shown}, "rows of other pages alone"
    many = ",".join(f"{number}:a" for number in range(2_001))
    answer = admin_client.post(LIST, sent | {"chosen": many})
    assert answer.status_code == 302 and Workflow.objects.filter(enabled=True).count() == 1


def test_a_large_selection_is_asked_about_and_answered_within_few_fields(admin_client):
    rows = make_workflows(1_100, enabled=False, content_hash="a")
    chosen = ",".join(f"{row.pk}:a" for row in rows)
    question = admin_client.post(LIST, {"action": "enable_selected", "index": "0", "chosen": chosen})
    answer = answer_question(admin_client, question)
    assert answer.status_code == 302 and Workflow.objects.filter(enabled=True).count() == 1_100


def test_selected_workflows_are_added_to_a_new_toolset(admin_client):
    workflow, other = make_workflow(), make_workflow()
    question = run_action(admin_client, "add_selected_to_toolset", workflow)
    make_toolset("taken")
    for given, field in (({}, "toolset"), ({"slug": "No slug"}, "slug"), ({"slug": "taken"}, "slug")):
        refused = answer_question(admin_client, question, **given)
        assert (refused.status_code, [*refused.context["form"].errors]) == (200, [field])
    answer = answer_question(admin_client, question, slug="billing", title="Billing")
    assert answer.status_code == 302
    toolset = Toolset.objects.get(slug="billing", title="Billing")
    assert set(toolset.picked.all()) == {workflow} and other.pk
    assert [entry.actor_name for entry in HistoryEntry.of(toolset)] == ["admin", "admin"]


def test_only_those_who_may_add_toolsets_are_offered_a_new_one(client):
    curator = User.objects.create_user("curator", is_staff=True)
    given = ("view_workflow", "change_workflow", "change_toolset")
    curator.user_permissions.set(Permission.objects.filter(codename__in=given))
    client.force_login(curator)
    question = run_action(client, "add_selected_to_toolset", make_workflow())
    assert set(question.context["form"].fields) == {"toolset"}
    answer_question(client, question, slug="billing", title="Billing")
    assert not Toolset.objects.exists()


def row_url(workflow: Workflow) -> str:
    return reverse("admin:catalogue_workflow_row", args=[workflow.pk])


def edited(client: Client, workflow: Workflow, **changes: str) -> dict[str, Any]:
    """What the form in the row sends after these changes."""
    return sent_back(client.get(row_url(workflow)), **changes)


def sent_back(page: Any, **changes: str) -> dict[str, Any]:
    shown = page.context_data
    values = {field.html_name: field.field.prepare_value(field.value()) or "" for field in shown["form"]}
    return values | {"_shown": shown["mark"]} | changes


def test_texts_that_are_edited_in_the_row_are_checked_and_recorded(admin_client):
    workflow, other = make_workflow(tags=["one"]), make_workflow()
    for field, value in (
        ("tool_name", other.tool_name),
        ("tool_name", "no name"),
        ("title_override", "x" * 256),
    ):
        refused = admin_client.post(row_url(workflow), edited(admin_client, workflow, **{field: value}))
        assert [*refused.context_data["form"].errors] == [field]
    assert not HistoryEntry.of(workflow).exists()
    sent = edited(admin_client, workflow, title_override="<b>Mine</b>", tags_override="-")
    answer = admin_client.post(row_url(workflow), sent)
    assert f'id="row-{workflow.pk}"' in answer.content.decode() and "&lt;b&gt;Mine" in answer.content.decode()
    entry = HistoryEntry.of(workflow).get()
    assert entry.changes == {"title_override": ["", "<b>Mine</b>"], "tags_override": [None, []]}
    revision = Revision.current()
    admin_client.post(row_url(workflow), edited(admin_client, workflow))
    assert (HistoryEntry.of(workflow).count(), Revision.current()) == (1, revision), "nothing was changed"


def test_an_edit_in_the_row_does_not_overwrite_another_curators(admin_client):
    workflow = make_workflow()
    sent = edited(admin_client, workflow, title_override="Mine", tags_override="mine")
    Workflow.objects.filter(pk=workflow.pk).update(title_override="Theirs", description_override="Theirs")
    refused = admin_client.post(row_url(workflow), sent)
    assert [*refused.context_data["form"].errors] == ["title_override"]
    admin_client.post(row_url(workflow), sent_back(refused))
    workflow.refresh_from_db()
    assert (workflow.title_override, workflow.description_override) == ("Mine", "Theirs")


def test_only_curators_edit_rows(client):
    reader, workflow = User.objects.create_user("reader", is_staff=True), make_workflow()
    reader.user_permissions.set(Permission.objects.filter(codename="view_workflow"))
    client.force_login(reader)
    assert "data-edit" not in client.get(LIST).content.decode()
    assert (client.get(row_url(workflow)).status_code, client.post(row_url(workflow)).status_code) == (
        403,
        403,
    )


def test_saved_views_are_the_users_own_or_shared(client):
    curator, reader = (User.objects.create_user(name, is_staff=True) for name in ("curator", "reader"))
    reader.user_permissions.set(Permission.objects.filter(codename="view_workflow"))
    curator.user_permissions.set(Permission.objects.filter(codename__in=["view_workflow", "change_workflow"]))
    save = reverse("admin:catalogue_workflow_view_save")

    def views() -> dict[str, bool]:
        return {view.name: view.may_be_deleted for view in listed(client, LIST).views}

    client.force_login(curator)
    answer = client.post(save, {"name": "Mine", "query": "tag=a&tag=b&p=3&q=x"})
    assert answer.headers["Location"] == f"{LIST}?tag=a&tag=b&q=x"
    client.post(save, {"name": "Mine", "query": "tag=c"})
    client.post(save, {"name": "All's", "query": "is=missing", "shared": "on"})
    assert views() == {"All's": True, "Mine": True}
    mine, shared = SavedView.objects.get(name="Mine", query="tag=c"), SavedView.objects.get(user=None)
    client.force_login(reader)
    assert views() == {"All's": False}
    assert client.post(save, {"name": "More", "shared": "on"}).status_code == 403
    for view, status in ((mine, 404), (shared, 403)):
        address = reverse("admin:catalogue_workflow_view_delete", args=[view.pk])
        assert client.post(address).status_code == status
        assert client.get(address).status_code == 405
    client.post(save, {"name": "", "query": "x" * 3_000})
    assert SavedView.objects.count() == 2
    for number in range(51):
        client.post(save, {"name": f"view {number}", "query": ""})
    assert SavedView.objects.filter(user=reader).count() == 50


def test_a_long_list_counts_its_facets_after_the_page_is_shown(admin_client, client, monkeypatch):
    monkeypatch.setattr("catalogue.admin.workflow_list.COUNTED_AT_ONCE", 2)
    make_workflow(tags=["billing"])
    make_workflow(tags=["billing"], enabled=False)
    facets = reverse("admin:catalogue_workflow_facets")
    assert f'hx-get="{facets}' not in admin_client.get(LIST).content.decode()

    make_workflow()
    page = admin_client.get(LIST, {"tag": "billing"}).content.decode()
    assert f'hx-get="{facets}?tag=billing" hx-trigger="load"' in page
    assert 'id="chips"' in page and 'class="choice' not in page
    assert f'href="{page_url(Workflow.objects.earliest("pk"))}?_changelist_filters=tag%3Dbilling"' in page
    shown = admin_client.get(facets, {"tag": "billing"})
    assert {
        (facet.name, choice.value): choice.count
        for facet, choices in shown.context["cl"].facets
        for choice in choices
    }["visibility", "exposed"] == 1
    assert 'href="?tag=billing&amp;visibility=exposed"' in shown.content.decode()
    assert admin_client.get(facets, {"tag": "x" * 300}).status_code == 404
    client.force_login(User.objects.create_user("nobody", is_staff=True))
    assert client.get(facets).status_code == 403
