"""Content blocks in the record: kept, cached, shared, cut and removed like the output."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from catalogue.models import Workflow
from executions.models import CachedOutput, CachedResult, Execution, ExecutionPayload, Retention, State
from executions.result_cache import COPIED_BYTES, clear_results
from executions.retention import prune
from tests.content_blocks import EVERY_KIND, gives, held, patient, picture, text
from tests.executions.caching import cache_for, let_results_age, use_of
from tests.executions.steps import call, in_database, payload_of, read, told

__all__ = ["held", "patient"]
pytestmark = pytest.mark.django_db(transaction=True)

LARGE = [picture(bytes(COPIED_BYTES)), text("Large.")]


@pytest.fixture
def cached(held: Workflow) -> Workflow:
    return cache_for(held)


def raw_payload(execution: Execution) -> dict[str, Any]:
    """What the row itself holds, without what it shares."""
    names = "output", "content", "shares_output"
    return ExecutionPayload.objects.filter(pk=execution.pk).values(*names).get()


def set_aside(days_ago: float) -> None:
    """Everything that has ended did so then, and payloads are kept for a day."""
    Retention.objects.update_or_create(pk=Retention.ONLY, defaults={"keep_payloads_days": 1})
    Execution.objects.update(finished_at=timezone.now() - timedelta(days=days_ago))
    let_results_age(days_ago * 86_400)


@pytest.mark.usefixtures("held")
async def test_the_blocks_are_kept_as_they_came(patient):
    """B3: beside the output, each as the engine gave it."""
    gives(patient, EVERY_KIND, output={"sum": 5})
    execution = await call("report")
    kept = await in_database(payload_of, execution)
    assert (kept.content, kept.output, kept.cut) == (EVERY_KIND, {"sum": 5}, [])
    assert execution.payload.content == EVERY_KIND


@pytest.mark.usefixtures("held")
async def test_a_failed_run_keeps_what_it_said_in_blocks(patient):
    """A7.4, B3."""
    gives(patient, [text("Line 3 is ragged."), picture()], error="Line 3 is ragged.")
    execution = await call("report")
    kept = await in_database(payload_of, execution)
    assert (execution.state, execution.error) == (State.FAILED, "Line 3 is ragged.")
    assert kept.content == [text("Line 3 is ragged."), picture()]


@pytest.mark.usefixtures("held")
async def test_blocks_that_are_too_large_are_cut_and_the_record_says_so(patient, configured):
    """E3, B3: the output is there all the same."""
    configured(max_payload_bytes=1024)
    gives(patient, [picture(bytes(1000))], output={"sum": 5})
    execution = await call("report")
    kept = await in_database(payload_of, execution)
    assert (execution.state, kept.output, kept.content) == (State.COMPLETED, {"sum": 5}, None)
    assert [entry["payload"] for entry in kept.cut] == ["content"]
    (cut,) = await in_database(told, execution, "cut")
    assert "The content of 1" in cut
    assert "exceeds the limit of 1024" in cut


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("output", [None, {"sum": 5}])
async def test_a_cached_result_has_the_blocks(patient, output):
    """E5, B7: also where there is nothing else; without a second run."""
    gives(patient, EVERY_KIND, output=output)
    first, second = await call("report"), await call("report")
    kept = await in_database(read, second)
    assert patient.count("start") == 1
    assert second.cached_from_id == first.pk
    assert (second.payload.content, second.payload.output) == (EVERY_KIND, output)
    assert (kept.payload.content, kept.payload.output) == (EVERY_KIND, output)


@pytest.mark.databases("executions.models.execution")
async def test_large_blocks_are_kept_once_for_all_hits(patient, cached):
    """B7: the hit's record refers to the run's, also when the cache has forgotten the result."""
    gives(patient, LARGE)
    first, second = await call("report"), await call("report")
    assert (await in_database(raw_payload, first))["content"] == LARGE
    assert await in_database(raw_payload, second) == {"output": None, "content": None, "shares_output": True}
    assert second.payload.content == LARGE
    await in_database(clear_results)
    assert (await in_database(read, second)).payload.content == LARGE


async def test_blocks_count_towards_the_size_of_a_cached_result(patient, cached):
    """E4, E9."""
    gives(patient, LARGE)
    await call("report")
    size = await in_database(lambda: CachedResult.objects.get().size)
    assert size > COPIED_BYTES * 4 / 3
    assert (await in_database(use_of, cached)).bytes == size


async def test_blocks_that_are_no_promised_output_are_not_cached(patient, cached):
    """E5: what would be told as an error is no answer to keep."""
    await in_database(lambda: Workflow.objects.update(output_schema={"type": "object"}))
    gives(patient, EVERY_KIND)
    await call("report")
    assert not await in_database(CachedResult.objects.exists)


@pytest.mark.usefixtures("cached")
@pytest.mark.databases("executions.models.execution")
async def test_the_retention_removes_the_blocks_everywhere(patient):
    """B7, E6: from the run, from those that share its result, and from the cache."""
    gives(patient, LARGE)
    first, second = await call("report"), await call("report")
    await in_database(set_aside, 2)
    await in_database(prune)
    for execution in (first, second):
        kept = await in_database(read, execution)
        assert (kept.payload.content, kept.payload.shares_output) == (None, False)
        assert kept.payload_pruned_at is not None
    assert not await in_database(CachedOutput.objects.exists)
