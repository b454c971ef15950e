"""Workflows in the admin: finding, enabling and describing them."""

import pytest
from django.utils import timezone

from catalogue.exposure import (
    Visibility,
)
from catalogue.models import Revision, Workflow
from tests.admin.pages import answer_question, list_url, page_url, run_action, text_of, told
from tests.factories import make_filter, make_source, make_workflow, make_workflows

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script>"


def tool_names(response: object) -> list[str]:
    return [workflow.tool_name for workflow in response.context["cl"].result_list]  # type: ignore[attr-defined]


def make_one_of_each() -> dict[Visibility, Workflow]:
    """A workflow for every reason that there is for being seen or not."""
    source = make_source()
    make_filter("secret*", action="exclude")
    return {
        Visibility.EXPOSED: make_workflow(source),
        Visibility.IN_TOOLSETS: make_workflow(source, only_in_toolsets=True),
        Visibility.DISABLED: make_workflow(source, enabled=False),
        Visibility.MISSING: make_workflow(source, missing_since=timezone.now()),
        Visibility.SOURCE_OFF: make_workflow(make_source(enabled=False)),
        Visibility.FILTERED: make_workflow(source, name="secret_things"),
        Visibility.FOR_APPS: make_workflow(
            make_source(kind="mcp", config={"apps": True}),
            metadata={"mcp": {"meta": {"ui": {"visibility": ["app"]}}}},
        ),
    }


# The list


def test_each_row_says_whether_agents_see_the_workflow_and_if_not_why(admin_client):
    """A4.2, A1.3: enabled, missing, switched off or hidden by a filter can be told apart at a glance."""
    workflows = make_one_of_each()
    page = admin_client.get(list_url(Workflow))
    shown = {row.tool_name: row.visibility for row in page.context["cl"].result_list}
    assert shown == {workflow.tool_name: visibility for visibility, workflow in workflows.items()}
    assert all(visibility.words in text_of(page) for visibility in Visibility)


@pytest.mark.parametrize("query", ["invoices", "Pay", "invoice-flow-77", "send_money", "quarterly"])
@pytest.mark.databases("catalogue.admin.workflow_list")
def test_workflows_are_found_by_name_id_description_and_tool_name(admin_client, query):
    """A3.1: whatever a curator remembers of it."""
    make_workflows(3)
    make_workflow(
        name="Pay all",
        upstream_id="invoice-flow-77",
        tool_name="send_money",
        description="Settles open invoices.",
        title_override="Quarterly payment",
    )
    assert tool_names(admin_client.get(list_url(Workflow), {"q": query})) == ["send_money"]


@pytest.mark.parametrize(
    "query",
    [
        {"available": "missing"},
        {"schema": "replaced"},
        {"limit": "own"},
        {"cache": "cached"},
        {"offered_as_prompt__exact": "1"},
        {"category": "finance"},
        {"enabled__exact": "0"},
        {"source__id__exact": "{source}"},
    ],
)
@pytest.mark.databases("catalogue.admin.exposure_rules")
def test_workflows_are_filtered(admin_client, query):
    """A6.3, A1.3: by source, enabled, missing, category and schema problem."""
    make_workflows(3)
    wanted = make_workflow(
        missing_since=timezone.now(),
        schema_problem="broken",
        category="finance",
        enabled=False,
        max_concurrent=5,
        cache_seconds=60,
        offered_as_prompt=True,
    )
    given = {name: value.format(source=wanted.source_id) for name, value in query.items()}
    assert tool_names(admin_client.get(list_url(Workflow), given)) == [wanted.tool_name]


def test_what_the_engine_calls_a_workflow_is_shown_as_text(admin_client):
    """B8: names, descriptions, tags, schemas and problems of engines are hostile."""
    workflow = make_workflow(
        name=HOSTILE,
        tool_name="hostile",
        description=HOSTILE,
        category=HOSTILE,
        author=HOSTILE,
        tags=[HOSTILE],
        schema_problem=HOSTILE,
        input_schema={"type": "object", "description": HOSTILE},
        metadata={"note": HOSTILE},
        icons=[{"src": f"https://example.com/{HOSTILE}"}],
    )
    for url in (list_url(Workflow), page_url(workflow)):
        page = admin_client.get(url).content.decode()
        assert HOSTILE not in page
        assert "&lt;script&gt;alert(1)" in page


# Enabling


@pytest.mark.databases("catalogue.admin.workflow_list")
def test_everything_that_matches_can_be_disabled_in_a_constant_number_of_queries(
    admin_client, django_assert_max_num_queries
):
    """A4.2: "select all" reaches beyond the page that is shown."""
    workflows = make_workflows(120)
    with django_assert_max_num_queries(75):  # type: ignore[operator]
        question = run_action(admin_client, "disable_selected", *workflows[:2], everything=True)
        response = answer_question(admin_client, question)
    assert "Disabled: 120" in told(response)
    assert not Workflow.objects.filter(enabled=True).exists()


# Hints for many


def test_selected_workflows_are_marked_as_read_only_whatever_was_said_before(admin_client):
    """A4.4: and agents notice."""
    unsaid, destructive = make_workflow(), make_workflow(destructive_hint=True, idempotent_hint=True)
    done, other = make_workflow(read_only_hint=True), make_workflow()
    revision = Revision.current()
    response = run_action(admin_client, "mark_selected_read_only", unsaid, destructive, done)
    assert "Marked as read-only: 2" in told(response)
    for workflow in (unsaid, destructive, done, other):
        workflow.refresh_from_db()
    assert unsaid.effective_hints == done.effective_hints == {"readOnlyHint": True}
    assert destructive.effective_hints == {"readOnlyHint": True, "idempotentHint": True}
    assert other.effective_hints == {}
    assert Revision.current() == revision + 1


def test_the_engines_hints_can_be_taken_again(admin_client):
    """A3.1: the way back from having marked too many."""
    engines = {"destructiveHint": True}
    marked = make_workflow(hints=engines, read_only_hint=True, open_world_hint=False)
    untouched = make_workflow(hints=engines)
    response = run_action(admin_client, "clear_selected_hints", marked, untouched)
    assert "hints: 1." in told(response)
    marked.refresh_from_db()
    assert marked.effective_hints == engines


# Permissions


def test_workflows_come_from_engines_only(admin_client):
    """A1.2, A1.3: nobody adds or deletes one by hand; its history stays."""
    workflow = make_workflow()
    assert admin_client.get(list_url(Workflow) + "add/").status_code == 403
    url = page_url(workflow).replace("/change/", "/delete/")
    assert admin_client.post(url, {"post": "yes"}).status_code == 403
    run_action(admin_client, "delete_selected", workflow)
    assert Workflow.objects.exists()


@pytest.mark.databases("catalogue.admin.workflow_list")
def test_workflows_are_found_and_listed_with_the_title_that_agents_see(admin_client):
    """A3.1: the curator's, else the engine's, else the name."""
    second = make_workflow(name="zz", upstream_title="Bake bread")
    make_workflow(name="aa", upstream_title="Answer mail", title_override="Count sheep")
    make_workflow(name="Add salt")
    assert tool_names(admin_client.get(list_url(Workflow), {"q": "bake bread"})) == [second.tool_name]
    shown = text_of(admin_client.get(list_url(Workflow)))
    assert all(title in shown for title in ("Bake bread", "Count sheep", "Add salt"))
    assert "Answer mail" not in shown


def test_an_empty_list_offers_only_what_can_be_done_there(admin_client):
    """B8: nobody can add a workflow by hand; filters can be reset once there are some."""
    empty = text_of(admin_client.get(list_url(Workflow)))
    assert "There is nothing here yet." in empty and "0 workflows" in empty
    assert "Reset filters" not in empty
    narrowed = text_of(admin_client.get(list_url(Workflow), {"q": "nothing"}))
    assert "Nothing here matches the search and the filters. filter_list_off Reset filters" in narrowed
