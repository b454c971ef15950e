from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from executions.failure_spikes import Runs, find_spikes, is_spike
from executions.models.usage import Key, Sums, add_usage, hour_of
from tests.factories import make_source, make_workflow

pytestmark = [pytest.mark.django_db, pytest.mark.databases("executions.failure_spikes")]


def count_runs(workflow, *, days_ago, calls, failed):
    now = hour_of(timezone.now()) - timedelta(days=days_ago)
    rows = []
    for outcome, number in (("failed", failed), ("completed", calls - failed)):
        key = Key(now, workflow.pk, workflow.tool_name, workflow.source.name, "", "a", "mcp", outcome, 1)
        rows.append((key, Sums(number, number, 0, 0, now, "a")))
    add_usage(row for row in rows if row[1].calls)


@pytest.mark.parametrize(
    ("recent", "before", "expected"),
    [
        ((10, 5), [], True),
        ((10, 4), [], False),  # Too few to say so
        ((1_000, 40), [(7_000, 7)], False),  # Many, but a small share
        ((1_000, 60), [(7_000, 70)], True),
        ((100, 45), [(700, 315)], False),  # As ever
        ((100, 45), [(700, 315), (3_000, 300)], True),  # New in comparison with the month
        ((100, 45), [(5, 5)], True),  # Five calls say nothing about what is usual.
        ((12, 5), [(700, 140)], False),  # Chance, at such a rate
        ((0, 0), [(700, 0)], False),
    ],
)
def test_a_spike_is_well_above_the_usual_rate(recent, before, expected):
    assert is_spike(Runs(*recent), *(Runs(*runs) for runs in before)) == expected


def test_spikes_are_found_among_tools_and_sources():
    broken, source = make_workflow(), make_source()
    steady = make_workflow()
    parts = [make_workflow(source) for _ in range(3)]
    count_runs(broken, days_ago=0, calls=40, failed=18)
    for days_ago in (0, 3, 20):
        count_runs(steady, days_ago=days_ago, calls=40, failed=18)
    for part in parts:
        count_runs(part, days_ago=0, calls=10, failed=3)
        count_runs(part, days_ago=5, calls=100, failed=0)
    with CaptureQueriesContext(connection) as queries:
        spikes = find_spikes()
    assert spikes.workflows == {broken.pk: (40, 18)}
    assert spikes.sources == {broken.source_id: (40, 18), source.pk: (30, 9)}
    assert len(queries) == 2


def test_cached_answers_and_cancelled_runs_do_not_count():
    workflow = make_workflow()
    now = hour_of(timezone.now())
    for outcome, calls in (("failed", 5), ("cached", 500), ("cancelled", 500)):
        key = Key(now, workflow.pk, workflow.tool_name, workflow.source.name, "", "a", "mcp", outcome, 1)
        add_usage([(key, Sums(calls, 1, 0, 0, now, "a"))])
    assert find_spikes().workflows == {workflow.pk: (5, 5)}
