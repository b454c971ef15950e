"""What agents see, and how soon they see a change."""

import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from catalogue import exposure
from catalogue.actions.sources import change_source, create_source, switch_sources
from catalogue.actions.workflows import disable_workflows, enable_workflows, override_workflow
from catalogue.exposure import (
    FilterChain,
    Visibility,
    confirmed_catalogue,
    current_catalogue,
    explain_exposure,
    fresh_catalogue,
    load_exposed_catalogue,
    preview_filters,
)
from catalogue.models import Revision, Source, Toolset, ToolsetRule, Workflow, WorkflowFilter
from tests.factories import NOWHERE, make_filter, make_source, make_toolset, make_workflow, make_workflows
from tests.thoroughness import THOROUGH
from tests.threads import together

pytestmark = pytest.mark.databases(
    "catalogue.exposure", "catalogue.models.history", "catalogue.actions.workflows"
)


def exposed() -> list[str]:
    return list(load_exposed_catalogue().workflows)


def test_only_enabled_present_workflows_of_enabled_sources_are_exposed_in_a_stable_order(db):
    """A4.1, A4.2, A1.3"""
    on, off = make_source(), make_source(enabled=False)
    for name in ("b", "a", "C"):
        make_workflow(on, name=name)
    make_workflow(on, name="disabled", enabled=False)
    make_workflow(on, name="missing", missing_since=timezone.now())
    make_workflow(off, name="of_source_off")

    assert sorted(exposed()) == ["C", "a", "b"]
    assert exposed() == exposed()


def test_reading_the_catalogue_takes_a_few_queries_whatever_its_size(db):
    """D6"""
    make_workflows(30)
    make_filter("*")

    with CaptureQueriesContext(connection) as queries:
        catalogue = load_exposed_catalogue()
        assert {workflow.source.name for workflow in catalogue.workflows.values()}

    assert len(queries) == 7


@pytest.mark.parametrize("passes", [True, False])
def test_the_reason_given_for_a_workflow_agrees_with_what_is_exposed(db, passes):
    """A4.2"""
    make_filter("*x*", action="exclude")
    rows = [
        make_workflow(make_source(enabled=source_on), name=name, enabled=enabled, missing_since=missing)
        for number, (source_on, enabled, missing) in enumerate(
            (source_on, enabled, missing)
            for source_on in (True, False)
            for enabled in (True, False)
            for missing in (None, timezone.now())
        )
        for name in (f"a{number}", f"x{number}")
    ]
    if passes:
        WorkflowFilter.objects.update(enabled=False)
    chain = FilterChain(WorkflowFilter.objects.all())

    verdicts = {row.tool_name: explain_exposure(row, chain).visibility for row in rows}

    assert [name for name, verdict in verdicts.items() if verdict == Visibility.EXPOSED] == exposed()
    assert verdicts["x0"] == (Visibility.EXPOSED if passes else Visibility.FILTERED)
    assert verdicts["a1"] == Visibility.MISSING
    assert verdicts["a2"] == Visibility.DISABLED
    assert verdicts["a4"] == Visibility.SOURCE_OFF


def test_a_preview_shows_what_saving_the_filters_would_do(db):
    """A4.2"""
    for name in ("alpha", "beta", "gamma"):
        make_workflow(name=name)
    rule = make_filter("b*", action="exclude")
    planned = WorkflowFilter(pattern="g*", action="exclude")

    now, then = preview_filters([rule]), preview_filters([rule, planned])

    assert (now.shown, now.hidden) == (["alpha", "gamma"], ["beta"])
    assert (then.shown, then.hidden) == (["alpha"], ["beta", "gamma"])
    planned.save()
    assert exposed() == then.shown


# --- remembered per process -----------------------------------------------------------------------------


def test_the_remembered_catalogue_is_used_without_a_query_while_it_is_fresh(db):
    """D6"""
    make_workflow()
    first = current_catalogue()

    with CaptureQueriesContext(connection) as queries:
        assert current_catalogue() is first and fresh_catalogue() is first
    assert len(queries) == 0


def test_after_half_a_second_one_query_confirms_that_nothing_changed(db, monkeypatch):
    """A4.4, D6"""
    monkeypatch.setattr(exposure, "MAX_AGE_SECONDS", 0.0)
    make_workflow()
    first = current_catalogue()

    with CaptureQueriesContext(connection) as queries:
        assert current_catalogue() is first and fresh_catalogue() is None
    assert len(queries) == 1


def test_a_change_is_seen_once_the_remembered_catalogue_has_aged(db, monkeypatch):
    """A4.4: and at once by whoever asks for confirmation."""
    assert exposure.MAX_AGE_SECONDS <= 1.0
    workflow = make_workflow()
    assert list(current_catalogue().workflows) == [workflow.tool_name]

    disable_workflows(Workflow.objects.all())

    assert confirmed_catalogue().workflows == {}
    enable_workflows(Workflow.objects.all())
    monkeypatch.setattr(exposure, "MAX_AGE_SECONDS", 0.0)
    assert list(current_catalogue().workflows) == [workflow.tool_name]


@pytest.mark.django_db(transaction=True)
def test_a_change_that_was_not_committed_is_not_remembered(monkeypatch):
    """A4.4: nor does its revision number come back for another content."""
    monkeypatch.setattr(exposure, "MAX_AGE_SECONDS", 0.0)
    workflow = make_workflow()
    before = current_catalogue()

    class Undone(Exception):
        pass

    with contextlib.suppress(Undone), transaction.atomic():
        disable_workflows(Workflow.objects.all())
        raise Undone

    assert current_catalogue() is before
    disable_workflows(Workflow.objects.all())
    assert current_catalogue().workflows == {} and workflow.pk


@pytest.mark.django_db(transaction=True)
def test_rows_that_change_while_the_catalogue_is_read_belong_to_a_later_revision(monkeypatch):
    """A4.4: otherwise the old rows would be kept under the new revision for ever."""
    monkeypatch.setattr(exposure, "MAX_AGE_SECONDS", 0.0)
    make_workflow(name="report")
    changes = iter([_disable_all])

    def change_after_the_rows_are_read(execute: Any, sql: str, *rest: Any) -> Any:
        result = execute(sql, *rest)
        if 'FROM "catalogue_workflow" ' in sql:
            for change in changes:
                changing = threading.Thread(target=_in_own_connection, args=(change,))
                changing.start()
                changing.join()
        return result

    with connection.execute_wrapper(change_after_the_rows_are_read):
        stale = current_catalogue()

    assert list(stale.workflows) == ["report"]
    assert current_catalogue().workflows == {}


def _saved(workflow: Workflow) -> None:
    workflow.title_override = "Changed"
    workflow.save(update_fields=["title_override"])


def _updated(workflow: Workflow) -> None:
    Workflow.objects.filter(pk=workflow.pk).update(title_override="Changed")


def _updated_in_bulk(workflow: Workflow) -> None:
    workflow.title_override = "Changed"
    Workflow.objects.bulk_update([workflow], ["title_override"])


def _upserted(workflow: Workflow) -> None:
    workflow.title_override = "Changed"
    unique = ("source", "upstream_id")
    Workflow.objects.bulk_create(
        [workflow], update_conflicts=True, unique_fields=unique, update_fields=["title_override"]
    )


def _updated_through_its_source(workflow: Workflow) -> None:
    workflow.source.workflows.filter(pk=workflow.pk).update(title_override="Changed")


@pytest.mark.parametrize(
    "write", [_saved, _updated, _updated_in_bulk, _upserted, _updated_through_its_source]
)
def test_however_a_row_is_written_the_change_is_seen_and_other_rows_are_not_read_again(db, write):
    """A4.4: with twenty thousand workflows, reading all of them takes seconds."""
    changed = make_workflow(name="changed")
    make_workflow(name="other")
    before = confirmed_catalogue().workflows

    write(changed)
    Revision.bump()

    after = confirmed_catalogue().workflows
    assert (after["changed"].title, before["changed"].title) == ("Changed", "changed")
    assert after["other"] is before["other"]


def test_other_settings_of_a_source_are_seen_and_its_last_listing_costs_nothing(db):
    """A4.4"""
    source = make_source("engine", base_url="https://one.example")
    make_workflow(source, name="a")
    first = confirmed_catalogue().workflows["a"]

    Source.objects.update(failures=3)
    Revision.bump()
    assert confirmed_catalogue().workflows["a"] is first and first.source.failures == 3

    source.config = source.config | {"base_url": "https://two.example"}
    source.save()
    second = confirmed_catalogue().workflows["a"]
    assert second.source.config["base_url"] == "https://two.example"
    assert first.source.config["base_url"] == "https://one.example"


@pytest.mark.parametrize("seed", range(5 if THOROUGH else 2))
def test_after_any_changes_the_catalogue_is_as_if_read_anew(db, seed):
    """A4.2, A4.4: rows, filters, toolsets, rules and picks in any order."""
    drawn = random.Random(seed)
    sources = [make_source("one"), make_source("two")]
    toolsets = [make_toolset("first"), make_toolset("second", portable=True)]
    for number in range(12):
        make_workflow(drawn.choice(sources), name=f"w.{number}")

    def anyone() -> Workflow:
        return drawn.choice(list(Workflow.objects.all()))

    def pattern() -> str:
        return drawn.choice(["*1*", "*.2", "w.*", "nothing"])

    changes: list[Callable[[], object]] = [
        lambda: make_workflow(drawn.choice(sources), name=f"w.{drawn.random()}"),
        lambda: anyone().delete(),
        lambda: drawn.choice([enable_workflows, disable_workflows])(Workflow.objects.filter(pk=anyone().pk)),
        lambda: override_workflow(anyone(), title_override=str(drawn.random())),
        lambda: make_filter(pattern(), action=drawn.choice(["include", "exclude"])),
        lambda: WorkflowFilter.objects.all().delete(),
        lambda: ToolsetRule.objects.create(
            toolset=drawn.choice(toolsets), action="include", subject="name", pattern=pattern()
        ),
        lambda: ToolsetRule.objects.all().delete(),
        lambda: drawn.choice(toolsets).picked.add(anyone()),
        lambda: drawn.choice(toolsets).picked.clear(),
        lambda: switch_sources(Source.objects.filter(name="two"), enabled=drawn.choice([True, False])),
    ]
    for _ in range(40):
        drawn.choice(changes)()
        Revision.bump()
        followed, anew = confirmed_catalogue(), load_exposed_catalogue()
        assert list(followed.workflows.items()) == list(anew.workflows.items())
        titles = ([each.title for each in one.workflows.values()] for one in (followed, anew))
        assert next(titles) == next(titles)
        for slug, toolset in anew.toolsets.items():
            assert list(followed.toolsets[slug].workflows) == list(toolset.workflows)
            assert followed.toolsets[slug].aliases == toolset.aliases


def _disable_all() -> None:
    disable_workflows(Workflow.objects.all())


def _in_own_connection(act: Callable[[], None]) -> None:
    try:
        act()
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
def test_many_threads_that_need_the_catalogue_at_once_read_it_once():
    """D6, B7: a restart under load must not start with a stampede."""
    make_workflows(3)

    def look() -> tuple[object, int]:
        connection.force_debug_cursor = True
        catalogue = current_catalogue()
        return catalogue, sum("workflowfilter" in query["sql"] for query in connection.queries)

    seen, reads = zip(*together(*[look] * 6), strict=True)
    assert len({id(catalogue) for catalogue in seen}) == 1
    assert sum(reads) == 1


# --- what moves the revision ----------------------------------------------------------------------------


def test_everything_a_curator_can_do_moves_the_revision(db, revision_of):
    """A4.4: agents' lists are kept by it, so a change that did not move it would not be seen."""
    source = make_source()
    workflow, other = make_workflows(2, source)
    rule = make_filter("x")
    acts: dict[str, Callable[[], object]] = {
        "save a workflow": workflow.save,
        "override": lambda: override_workflow(workflow, title_override="New"),
        "disable": lambda: disable_workflows(Workflow.objects.filter(pk=workflow.pk)),
        "enable": lambda: enable_workflows(Workflow.objects.filter(pk=workflow.pk)),
        "save a filter": rule.save,
        "delete a filter": rule.delete,
        "delete filters": lambda: make_filter("y") and WorkflowFilter.objects.all().delete(),
        "delete a workflow": workflow.delete,
        "delete workflows": lambda: Workflow.objects.filter(pk=other.pk).delete(),
        "configure a source": lambda: change_source(source, credentials={"api_key": "other"}),
        "rename a source": lambda: change_source(source, name="renamed"),
        "switch sources off": lambda: switch_sources(Source.objects.all(), enabled=False),
        "switch sources on": lambda: switch_sources(Source.objects.all(), enabled=True),
        "add a source": lambda: create_source(
            name="new", kind="simplified", config={"base_url": NOWHERE}, credentials={}
        ),
        "delete a source": source.delete,
        "delete sources": lambda: Source.objects.all().delete(),
    }

    unmoved = [name for name, act in acts.items() if revision_of(act) < 1]

    assert unmoved == []


def test_every_change_of_a_toolset_moves_the_revision(db, revision_of):
    """A4.4: also of what was picked, from either side of the relation."""
    workflow, other = make_workflows(2)
    toolset = make_toolset(rules=["a", "b"])
    acts: dict[str, Callable[[], object]] = {
        "make one": make_toolset,
        "save one": toolset.save,
        "pick": lambda: toolset.picked.add(workflow),
        "pick others": lambda: toolset.picked.set([other]),
        "unpick": lambda: toolset.picked.remove(other),
        "pick for a workflow": lambda: workflow.toolsets.add(toolset),
        "unpick all": lambda: toolset.picked.clear(),
        "unpick all for a workflow": lambda: workflow.toolsets.clear(),
        "save a rule": lambda: toolset.rules.get(pattern="a").save(),
        "delete a rule": lambda: toolset.rules.get(pattern="a").delete(),
        "delete rules": lambda: toolset.rules.all().delete(),
        "delete it": toolset.delete,
        "delete toolsets": lambda: Toolset.objects.all().delete(),
    }

    unmoved = [name for name, act in acts.items() if revision_of(act) < 1]

    assert unmoved == []


def test_toolsets_do_not_make_reading_the_catalogue_slower(db):
    """D6: the same queries for one as for ten, however many rules and picks they have."""
    workflows = make_workflows(5)
    counts = []
    for _ in range(2):
        for _ in range(5):
            make_toolset(picked=workflows[:3], rules=["a", "b"])
        with CaptureQueriesContext(connection) as queries:
            load_exposed_catalogue()
        counts.append(len(queries))

    assert counts[0] == counts[1] == 8


def test_switching_what_is_switched_already_does_not_move_it(db, revision_of):
    make_workflow()

    assert revision_of(lambda: enable_workflows(Workflow.objects.all())) == 0
    assert revision_of(lambda: switch_sources(Source.objects.all(), enabled=True)) == 0


def test_the_first_change_of_a_new_database_counts(db):
    Revision.objects.all().delete()
    assert Revision.current() == 0

    make_source()

    assert Revision.current() == 1


def test_switching_works_on_sliced_ordered_and_joined_querysets(db):
    """A4.2: lists in the admin are all of these."""
    source = make_source()
    make_workflows(4, source, enabled=False)

    assert enable_workflows(Workflow.objects.order_by("-tool_name")[:2]) == 2
    assert enable_workflows(Workflow.objects.filter(source__name=source.name).distinct()) == 2
    assert disable_workflows(Source.objects.get().workflows.all()) == 4
    assert disable_workflows(Workflow.objects.none()) == 0


@pytest.mark.parametrize("tags", ["finance", {"a": 1}, [1], 5, [None]])
def test_tags_that_are_no_list_of_texts_are_refused(db, tags):
    """B8: one wrong row would take every tool from every agent."""
    workflow = make_workflow()

    with pytest.raises(ValidationError) as refused:
        override_workflow(workflow, tags_override=tags)

    assert set(refused.value.message_dict) == {"tags_override"}


def test_a_curator_cannot_change_what_upstream_decides(db):
    with pytest.raises(TypeError, match="These fields cannot be set here: input_schema, upstream_id"):
        override_workflow(make_workflow(), input_schema={}, upstream_id="x")
