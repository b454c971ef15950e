"""What a listing adds, changes, hides and brings back."""

from datetime import timedelta
from uuid import UUID

import pytest
from django.utils import timezone

from catalogue.actions.workflows import override_workflow
from catalogue.discovery import RefreshRefused, due_sources, refresh_source, sources_to_list_at_start
from catalogue.exposure import load_exposed_catalogue
from catalogue.models import DiscoveryRun, Revision, Source, Workflow
from executions.models import Execution
from tests.catalogue.engine import Engine, definition, definitions
from tests.factories import make_execution, make_source

pytestmark = pytest.mark.databases("catalogue.discovery", "catalogue.reconciliation")

Outcome = DiscoveryRun.Outcome


def counts(run: DiscoveryRun) -> dict[str, int]:
    names = ("added", "updated", "unchanged", "returned", "missing", "skipped_count")
    return {name: value for name in names if (value := getattr(run, name))}


def test_every_workflow_of_the_first_listing_is_added_with_what_the_engine_says_of_it(engine, source):
    """A1.1, A1.2, A3.1"""
    engine.workflows = [
        definition(
            1,
            category="finance",
            version="2.1",
            executionType="sync",
            author="Ada",
            tags=["money"],
            metadata={"queue": "q1", "outputSchema": {"type": "object", "properties": {"sum": {}}}},
        ),
        definition(2),
    ]

    run = refresh_source(source)

    assert run.outcome == Outcome.SUCCEEDED and counts(run) == {"added": 2}
    first = Workflow.objects.get(upstream_id="wf-1")
    assert (first.name, first.description) == ("report_1", "Makes report 1.")
    assert (first.category, first.version, first.execution_type) == ("finance", "2.1", "sync")
    assert (first.author, first.tags, first.metadata["queue"]) == ("Ada", ["money"], "q1")
    assert first.input_schema == {"type": "object", "properties": {"month": {"type": "string"}}}
    assert first.output_schema == {"type": "object", "properties": {"sum": {}}}
    assert (first.tool_name, first.enabled, first.schema_problem) == ("report_1", False, "")


def test_optional_metadata_that_is_missing_or_null_gets_its_defaults(engine, source):
    """A3.2, A3.3, A3.5, A6.1"""
    engine.workflows = [
        {"id": "a", "name": "bare", "description": "Nothing more."},
        definition(2, inputSchema=None) | {"inputSchema": None, "category": None, "version": None},
    ]

    refresh_source(source)

    for workflow in Workflow.objects.all():
        assert (workflow.category, workflow.version) == ("workflow", "1.0.0")
        assert (workflow.execution_type, workflow.author, workflow.tags) == ("async", "", [])
        assert workflow.input_schema == {"type": "object", "additionalProperties": True}
        assert workflow.schema_problem == ""


def test_a_second_listing_is_counted_by_what_it_changes(engine, source):
    """A4.3"""
    engine.workflows = definitions(4)
    refresh_source(source)
    engine.workflows = [definition(1), definition(2, description="Better."), definition(5)]

    run = refresh_source(source)

    assert counts(run) == {"unchanged": 1, "updated": 1, "added": 1, "missing": 2}
    assert run.found == 3 and run.duration_ms is not None
    run.refresh_from_db()
    assert counts(run) == {"unchanged": 1, "updated": 1, "added": 1, "missing": 2}
    assert Workflow.objects.get(upstream_id="wf-2").description == "Better."


def test_a_workflow_that_stays_missing_is_counted_once(engine, source):
    """A1.3"""
    engine.workflows = definitions(2)
    refresh_source(source)
    engine.workflows = definitions(1)
    refresh_source(source)
    since = Workflow.objects.get(upstream_id="wf-2").missing_since

    run = refresh_source(source)

    assert counts(run) == {"unchanged": 1}
    assert Workflow.objects.get(upstream_id="wf-2").missing_since == since


def test_a_workflow_that_disappears_is_hidden_while_its_row_and_history_stay(engine, source):
    """A1.3"""
    source.new_workflows = Source.NewWorkflows.EXPOSED
    source.save()
    engine.workflows = definitions(2)
    refresh_source(source)
    execution: UUID = make_execution(Workflow.objects.get(upstream_id="wf-1")).pk
    engine.workflows = [definition(2)]

    refresh_source(source)

    assert list(load_exposed_catalogue().workflows) == ["report_2"]
    assert Execution.objects.get(pk=execution).workflow == Workflow.objects.get(upstream_id="wf-1")


def test_a_workflow_that_returns_keeps_what_its_curator_decided(engine, source):
    """A1.3, A6.4"""
    Source.objects.update(change_policy=Source.ChangePolicy.FOLLOW)
    engine.workflows = definitions(2)
    refresh_source(source)
    workflow = Workflow.objects.get(upstream_id="wf-1")
    override_workflow(workflow, tool_name="monthly", title_override="Monthly", tags_override=["x"])
    Workflow.objects.update(enabled=True)
    engine.workflows = [definition(2)]
    refresh_source(source)
    engine.workflows = [definition(1, name="renamed", description="New words."), definition(2)]

    run = refresh_source(source)

    assert counts(run) == {"returned": 1, "unchanged": 1}
    workflow.refresh_from_db()
    assert workflow.missing_since is None and workflow.enabled
    assert (workflow.tool_name, workflow.title, workflow.shown_tags) == ("monthly", "Monthly", ["x"])
    assert (workflow.name, workflow.shown_description) == ("renamed", "New words.")


def test_curator_decisions_survive_a_change_upstream(engine, source):
    """A3.1"""
    engine.workflows = definitions(1)
    refresh_source(source)
    workflow = override_workflow(
        Workflow.objects.get(), description_override="Ours.", timeout_seconds=7, inline_wait_seconds=3
    )
    engine.workflows = [definition(1, description="Theirs, changed.", tags=["new"])]

    refresh_source(source)

    workflow.refresh_from_db()
    assert (workflow.shown_description, workflow.description) == ("Ours.", "Theirs, changed.")
    assert (workflow.timeout_seconds, workflow.inline_wait_seconds, workflow.tags) == (7, 3, ["new"])


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"description": "Other."},
        {"inputSchema": {"type": "object"}},
        {"tags": ["a"]},
        {"category": "other"},
        {"version": "9"},
        {"executionType": "sync"},
        {"metadata": {"queue": "other"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_revision_moves_with_each_field_that_changes_and_stays_for_an_unchanged_listing(
    engine, source, change
):
    """A4.3: agents are told of a new list exactly when there is one."""
    engine.workflows = definitions(2)
    refresh_source(source)
    before = Revision.current()

    refresh_source(source)
    assert Revision.current() == before

    engine.workflows = [definition(1, **change), definition(2)]
    assert counts(refresh_source(source)) == {"updated": 1, "unchanged": 1}
    assert Revision.current() == before + 1


def test_the_order_in_which_an_engine_lists_is_no_change(engine, source):
    engine.workflows = definitions(5)
    refresh_source(source)
    before = Revision.current()
    engine.workflows = [dict(reversed(listed.items())) for listed in reversed(definitions(5))]

    assert counts(refresh_source(source)) == {"unchanged": 5}
    assert Revision.current() == before


def test_new_workflows_are_enabled_where_the_source_says_so_and_hidden_otherwise(engine, db):
    """A1.2: the default lets a curator look first."""
    engine.workflows = definitions(2)
    careful = make_source(base_url=engine.base_url)
    trusting = make_source(base_url=engine.base_url, new_workflows=Source.NewWorkflows.EXPOSED)

    refresh_source(careful)
    refresh_source(trusting)

    assert not careful.workflows.filter(enabled=True).exists()
    assert trusting.workflows.filter(enabled=True).count() == 2


def test_sources_are_independent_of_each_other(engine, source):
    """A6.4, B6: the same ids and names from another engine are other workflows."""
    with Engine() as second:
        other = make_source("crm", base_url=second.base_url)
        engine.workflows, second.workflows = definitions(2), definitions(2)
        refresh_source(source)
        refresh_source(other)
        second.workflows = []
        refresh_source(other)
    failed = refresh_source(other)

    assert failed.outcome == Outcome.FAILED
    assert source.workflows.filter(missing_since=None).count() == 2
    source.refresh_from_db()
    assert source.health_state == Source.HealthState.OK
    assert set(source.workflows.values_list("tool_name", flat=True)) == {"report_1", "report_2"}
    assert set(other.workflows.values_list("tool_name", flat=True)) == {"report_1_wf-1", "report_2_wf-2"}


# --- when the next listing is due -----------------------------------------------------------------------


@pytest.mark.parametrize(("own", "expected"), [(None, 300), (60, 60), (0, None)])
def test_the_next_listing_is_due_after_the_interval_of_the_source_or_of_the_product(
    engine, source, own, expected
):
    """A1.1, B4"""
    Source.objects.update(refresh_interval=own)

    refresh_source(source)

    source.refresh_from_db()
    assert source.last_refreshed_at is not None
    if expected is None:
        assert source.next_refresh_at is None and due_sources() == []
    else:
        assert source.next_refresh_at == source.last_refreshed_at + timedelta(seconds=expected)
        Source.objects.update(next_refresh_at=timezone.now())
        assert due_sources() == [source.pk]


def test_a_product_interval_of_zero_means_by_hand_unless_the_source_has_its_own(engine, source, settings):
    """B4"""
    settings.CATALOGUE = settings.CATALOGUE | {"discovery_interval": 0}
    own = make_source(base_url=engine.base_url, refresh_interval=30)

    refresh_source(source)
    refresh_source(own)

    source.refresh_from_db()
    own.refresh_from_db()
    assert source.next_refresh_at is None and own.next_refresh_at is not None
    assert sources_to_list_at_start() == [own.pk]


def test_discovery_switched_off_schedules_nothing_but_can_be_done_by_hand(engine, source, settings):
    """A4.1"""
    settings.CATALOGUE = settings.CATALOGUE | {"discovery_enabled": False}
    engine.workflows = definitions(1)

    assert due_sources() == [] and sources_to_list_at_start() == []
    assert counts(refresh_source(source)) == {"added": 1}


def test_a_source_that_is_switched_off_is_neither_due_nor_refreshed(engine, source):
    """A4.1"""
    Source.objects.update(enabled=False)

    assert due_sources() == [] and sources_to_list_at_start() == []
    with pytest.raises(RefreshRefused, match="erp is disabled"):
        refresh_source(source)
    assert engine.asked == 0 and not DiscoveryRun.objects.exists()


def test_a_source_that_was_deleted_is_refused_in_words(engine, source):
    Source.objects.all().delete()

    with pytest.raises(RefreshRefused, match="erp no longer exists"):
        refresh_source(source)


def test_a_refresh_uses_the_settings_of_now_whatever_the_caller_had_read_before(engine, source):
    """A4.4"""
    engine.workflows = definitions(1)
    stale = Source.objects.get()
    stale.config = {"base_url": "http://127.0.0.1:9"}
    stale.enabled = False

    assert counts(refresh_source(stale)) == {"added": 1}


def test_runs_say_what_started_them(engine, source):
    """A5.3"""
    refresh_source(source, trigger=DiscoveryRun.Trigger.SCHEDULE)
    refresh_source(source)

    assert [run.trigger for run in source.discovery_runs.order_by("pk")] == ["schedule", "manual"]
