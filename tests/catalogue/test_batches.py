"""A listing costs a number of queries per batch, never per workflow."""

import math
from collections.abc import Callable

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from catalogue.actions.workflows import disable_workflows, enable_workflows
from catalogue.discovery import refresh_source
from catalogue.models import Source, Workflow
from catalogue.reconciliation import BATCH
from tests.catalogue.engine import Engine, definitions
from tests.factories import make_source, make_workflow, make_workflows

pytestmark = pytest.mark.databases("catalogue.reconciliation", "catalogue.actions.workflows")

FEW, MANY = 100, 400


def queries_of(act: Callable[[], object]) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        act()
    return len(captured)


def batches_of(count: int) -> int:
    """Into how many statements the database splits writing so many rows."""
    columns = [field.attname for field in Workflow._meta.concrete_fields if not field.primary_key]
    allowed = connection.ops.bulk_batch_size(columns, [None] * count)
    return math.ceil(count / min(BATCH, allowed))


@pytest.fixture
def cost(engine: Engine, db: None) -> Callable[[int], dict[str, int]]:
    """Queries of a source's first listing, an unchanged, a changed, an emptied and a refilled one."""

    def measure(count: int) -> dict[str, int]:
        source = make_source(base_url=engine.base_url)
        costs = {}
        for name, listing in {
            "first": definitions(count),
            "unchanged": definitions(count),
            "changed": definitions(count, description="Changed."),
            "emptied": [],
            "refilled": definitions(count),
        }.items():
            engine.workflows = listing
            costs[name] = queries_of(lambda: refresh_source(source))
        assert Workflow.objects.filter(source=source, missing_since=None).count() == count
        return costs

    return measure


def test_the_queries_of_a_listing_grow_with_its_batches_only(cost):
    """A1.1: four times the workflows, and no query more beyond those of additional batches."""
    few, many = cost(FEW), cost(MANY)

    more = batches_of(MANY) - batches_of(FEW)
    assert many["unchanged"] == few["unchanged"] <= 20
    assert many["emptied"] == few["emptied"] <= 20
    assert many["first"] - few["first"] == more
    assert many["changed"] - few["changed"] == more
    assert many["refilled"] - few["refilled"] == more


@pytest.mark.parametrize("count", [3, 30])
def test_switching_workflows_takes_the_same_few_queries_for_any_number(db, count):
    make_workflows(count, enabled=False)

    assert queries_of(lambda: enable_workflows(Workflow.objects.all())) <= 11
    assert queries_of(lambda: disable_workflows(Workflow.objects.all())) <= 7


def test_workflows_of_other_sources_are_not_read_when_nothing_is_new(engine, db):
    """Tool names have to be unique over all sources, but that matters to new workflows only."""
    source: Source = make_source(base_url=engine.base_url)
    engine.workflows = definitions(1)
    refresh_source(source)
    make_workflow(tool_name="of_another_source")

    with CaptureQueriesContext(connection) as captured:
        refresh_source(source)

    reads = [query["sql"] for query in captured if 'FROM "catalogue_workflow"' in query["sql"]]
    listed, counted = reads
    assert "source_id" in listed and "source_id" in counted and "COUNT" in counted
