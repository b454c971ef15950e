"""What becomes of cached results when nobody calls: clearing, cleaning, retention, deleting."""

from datetime import datetime, timedelta
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.utils import timezone

from catalogue.models import Workflow
from config.celery import app
from executions import retention
from executions.models import (
    CachedOutput,
    CachedResult,
    CachePolicy,
    CacheUse,
    Execution,
    ExecutionPayload,
    Retention,
    State,
)
from executions.reading import describe_execution
from executions.result_cache import cache_figures, clean_if_due, clear_results
from executions.retention import Pruned, prune
from executions.starting import create_execution
from executions.tasks import clean_result_cache
from tests.executions.caching import (
    cache_for,
    cached_outputs,
    counts,
    finish_run,
    let_results_age,
    set_policy,
    totals_agree,
)
from tests.executions.steps import read, request_for
from tests.factories import make_execution, make_workflow

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases("executions.result_cache", "executions.models.result_cache"),
]

DIGEST = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
"""Of no arguments: what `request_for` asks without more."""


@pytest.fixture
def report() -> Workflow:
    """A workflow whose results are cached; `{}` has come to {"run": 1}."""
    workflow = cache_for(make_workflow(name="report"))
    finish_run(workflow, digest=DIGEST, output={"run": 1})
    return workflow


def hit() -> Execution:
    answered = create_execution(request_for("report"))
    assert answered.cached_at is not None
    return answered


def let_days_pass(days: float) -> None:
    """As if everything that has ended had ended that much earlier."""
    let_results_age(days * 86_400)
    for execution in Execution.objects.exclude(finished_at=None):
        ended_at = execution.finished_at - timedelta(days=days)
        Execution.objects.filter(pk=execution.pk).update(finished_at=ended_at)


# Clearing


def test_one_workflow_or_all_are_cleared(report):
    """E4."""
    other = make_workflow(cache_seconds=60)
    finish_run(report, digest="more", output=1)
    finish_run(other, output=2)
    assert clear_results({report.pk}) == 2
    assert cached_outputs() == [2]
    assert clear_results() == 1 and clear_results() == 0
    assert counts(report)["cleared"] == 2 and counts(other)["cleared"] == 1 and totals_agree()
    assert CacheUse.objects.get(pk=report.pk).cleared_at is not None


def test_more_than_a_batch_is_cleared(report):
    """E4."""
    now = timezone.now()
    CachedResult.objects.bulk_create(
        CachedResult(
            workflow=report, key=f"{number}", size=1, created_at=now, expires_at=now, last_used_at=now
        )
        for number in range(450)
    )
    CacheUse.objects.update(entries=451, bytes=450 + CachedResult.objects.get(size__gt=1).size)
    assert clear_results() == 451
    assert not CachedResult.objects.exists() and not CachedOutput.objects.exists() and totals_agree()


@pytest.mark.parametrize(
    ("arguments", "number", "told"), [((), 2, "2 cached results"), (("report",), 1, "1 cached result")]
)
def test_the_command_clears(report, arguments, number, told):
    """E4."""
    finish_run(make_workflow(cache_seconds=60), output=2)
    out = StringIO()
    call_command("clear_result_cache", *arguments, stdout=out)
    assert out.getvalue() == f"Cleared: {told}.\n"
    assert len(cached_outputs()) == 2 - number


def test_the_command_names_a_workflow_that_there_is_not(report):
    with pytest.raises(CommandError, match="No workflow has the tool name reprot"):
        call_command("clear_result_cache", "reprot")
    assert len(cached_outputs()) == 1


# Cleaning


def test_workers_clean_when_the_interval_is_over(report):
    """E4: the interval that the administrator set last holds; one of several processes does it."""
    clean_result_cache()
    first = CachePolicy.objects.get().cleaned_at
    let_results_age(601)
    clean_result_cache()
    assert CachePolicy.objects.get().cleaned_at == first and len(cached_outputs()) == 1
    CachePolicy.objects.update(cleaned_at=timezone.now() - timedelta(seconds=60), cleanup_seconds=50)
    clean_if_due()
    assert cached_outputs() == [] and counts(report)["expired"] == 1
    assert CachePolicy.objects.get().cleaned_at != first


def test_the_schedule_asks_for_a_cleanup_more_often_than_any_interval():
    """E4."""
    entry = app.conf.beat_schedule["clean-result-cache"]
    assert entry["task"] == clean_result_cache.name and entry["schedule"] <= 10


@pytest.mark.parametrize(
    "fields", [{"max_bytes": 100}, {"cleanup_seconds": 1}, {"cleanup_seconds": 100_000}, {"max_bytes": 2**50}]
)
def test_the_policy_is_bounded(fields):
    with pytest.raises(ValidationError):
        CachePolicy(**fields).full_clean()


def test_there_is_one_policy():
    set_policy()
    with pytest.raises(IntegrityError), transaction.atomic():
        CachePolicy.objects.create(pk=2)


# Retention


def keep(**days: int) -> None:
    kinds = ("records", "payloads", "events", "discovery_runs")
    Retention.objects.all().delete()
    Retention.objects.create(**{f"keep_{kind}_days": days.get(kind) for kind in kinds})


@pytest.mark.parametrize("kind", ["payloads", "records"])
def test_a_cached_output_is_kept_no_longer_than_what_it_is_a_copy_of(report, kind):
    """E6: however long the curator lets it answer."""
    cache_for(report, 2_592_000)
    finish_run(report, digest=DIGEST, output={"secret": 1})
    keep(**{kind: 2})
    let_days_pass(1)
    assert prune() == Pruned()
    let_days_pass(1.1)
    assert prune().cached_results == 1
    assert not CachedOutput.objects.exists() and counts(report)["expired"] == 1 and totals_agree()


def test_without_a_limit_cached_results_are_kept_for_their_own_time(report):
    """E6."""
    keep()
    let_days_pass(1000)
    assert prune() == Pruned() and len(cached_outputs()) == 1


def test_a_hit_survives_the_run_that_it_is_from(report):
    """B3: it says so as long as it is kept itself."""
    answered = hit()
    keep(records=1)
    let_days_pass(2)
    Execution.objects.filter(pk=answered.pk).update(finished_at=timezone.now())
    assert prune().executions == 1
    record = read(answered)
    assert record.cached_from is None and record.cached_at is not None
    assert describe_execution(record)["cached_from"] is None and record.payload.output == {"run": 1}


def test_a_record_that_a_cached_result_refers_to_stays(report):
    """B3: hits refer to it; it goes as soon as the cached result is gone."""
    keep(records=1)
    let_days_pass(2)
    CachedResult.objects.update(created_at=timezone.now())
    assert prune() == Pruned()
    clear_results()
    assert prune() == Pruned(executions=1)


def test_a_large_cache_does_not_keep_other_kinds_waiting_for_a_later_pass(report, monkeypatch):
    """Nothing else was removed before the last cached result."""
    forget_results, rounds = retention.forget_results, []

    def forget_few(*, older_than: datetime) -> int:
        """As many as there may be: all of a pass removes no more than a part of them."""
        rounds.append(older_than)
        return 1 if len(rounds) < 1_000_000 else forget_results(older_than=older_than)

    monkeypatch.setattr(retention, "forget_results", forget_few)
    keep(records=1)
    make_execution(state=State.COMPLETED)
    let_days_pass(2)
    pruned = prune(seconds=1)
    assert pruned.executions == 1 and pruned.cached_results > 1 and not pruned.all_done
    rounds[:] = [timezone.now()] * 1_000_000
    assert prune(seconds=60).all_done and not Execution.objects.exists()


@pytest.mark.parametrize("kind", ["payloads", "records"])
def test_a_large_output_that_is_removed_is_removed_for_all_who_show_it(report, kind):
    """E6: and they say when that was."""
    finish_run(report, digest=DIGEST, output={"large": "x" * 100_000})
    answered = hit()
    assert describe_execution(read(answered))["output"] == {"large": "x" * 100_000}
    keep(**{kind: 1})
    let_days_pass(2)
    Execution.objects.filter(pk=answered.pk).update(finished_at=timezone.now())
    prune()
    record = read(answered)
    assert (record.payload.output, record.payload.input) == (None, None)
    assert record.payload_pruned_at is not None and "output_removed_at" in describe_execution(record)
    assert not ExecutionPayload.objects.filter(shares_output=True).exists()


# Deleting


@pytest.mark.parametrize("what", ["workflow", "source"])
def test_what_is_deleted_takes_its_cached_results_along(report, what):
    """E6."""
    answered = hit()
    (report if what == "workflow" else report.source).delete()
    assert not CachedResult.objects.exists() and not CachedOutput.objects.exists()
    assert not CacheUse.objects.exists()
    assert read(answered).workflow is None and read(answered).payload.output == {"run": 1}


# Figures


def test_the_figures_tell_how_the_cache_does(report):
    """E9."""
    nothing = cache_figures(make_workflow().pk)
    assert (nothing.entries, nothing.hits, nothing.hit_rate) == (0, 0, None)
    for _ in range(3):
        hit()
    finish_run(make_workflow(cache_seconds=60), output=2)
    all_of_them, of_one = cache_figures(), cache_figures(report.pk)
    assert (all_of_them.entries, all_of_them.hits, all_of_them.misses) == (2, 3, 2)
    assert (of_one.entries, of_one.hits, of_one.misses, of_one.hit_rate) == (1, 3, 1, 0.75)
    assert of_one.bytes == len('{"run": 1}') and of_one.max_bytes == 100 * 1024 * 1024
