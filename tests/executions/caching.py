"""What the tests of the result cache do again and again."""

from datetime import timedelta
from typing import Any

from django.db.models import F

from catalogue.actions.workflows import override_workflow
from catalogue.exposure import forget_catalogue
from catalogue.models import Workflow
from connectors.protocol import RunSnapshot, RunState
from executions.models import CachedResult, CachePolicy, CacheUse, Execution, State
from executions.models.result_cache import cache_key
from executions.result_cache import count_run
from tests.connectors.scripted import Behaviour, replies
from tests.executions.engines import WireEngine, completed, receipt
from tests.executions.steps import payload_of
from tests.factories import make_execution


def cache_for(workflow: Workflow, seconds: int | None = 600) -> Workflow:
    """As a curator decides it; the next call knows."""
    override_workflow(workflow, cache_seconds=seconds)
    forget_catalogue()
    return workflow


def at_once(output: Any = None, **more: Any) -> Behaviour:
    """The engine runs it to its end before it answers the start."""
    return replies(200, completed(output) | receipt() | more)


def numbered(engine: WireEngine) -> None:
    """The engine's results tell which run they are of: {"run": 1}, {"run": 2}, ..."""

    async def behave(request: Any, writer: Any) -> None:
        await at_once({"run": engine.count("start")})(request, writer)

    engine.on_start = behave


def set_policy(**fields: Any) -> None:
    CachePolicy.objects.update_or_create(pk=CachePolicy.ONLY, defaults=fields)


def let_results_age(seconds: float) -> None:
    """As if they had been cached, and used, that much earlier."""
    ago = timedelta(seconds=seconds)
    names = ("created_at", "expires_at", "last_used_at")
    CachedResult.objects.update(**{name: F(name) - ago for name in names})


def use_of(workflow: Workflow) -> CacheUse:
    return CacheUse.objects.get(pk=workflow.pk)


def output_of(execution: Execution) -> Any:
    return payload_of(execution).output


def cached_outputs() -> list[Any]:
    """From the one that was used longest ago to the one that was used last."""
    results = CachedResult.objects.select_related("kept").order_by("last_used_at", "pk")
    return [result.kept.output for result in results]


def counts(workflow: Workflow) -> dict[str, int]:
    """Those that are not 0."""
    names = (
        "entries", "hits", "misses", "refreshes", "stored", "oversized", "evictions", "expired", "cleared",
    )  # fmt: skip
    use = CacheUse.objects.filter(pk=workflow.pk).values(*names).first() or {}
    return {name: number for name, number in use.items() if number}


def totals_agree() -> bool:
    """What is counted is what is there."""
    for use in CacheUse.objects.all():
        sizes = list(CachedResult.objects.filter(workflow=use.pk).values_list("size", flat=True))
        if (use.entries, use.bytes) != (len(sizes), sum(sizes)):
            return False
    return True


def finish_run(workflow: Workflow, *, output: Any, digest: str = "") -> None:
    """A run of the workflow with these arguments ends now, that missed when it began."""
    running = make_execution(
        workflow,
        state=State.RUNNING,
        run_id="run-x",
        arguments_hash=digest,
        cache_key=cache_key(workflow, digest),
        payload={"output": None},
    )
    count_run(running, fresh=False)
    assert running.finish_as_reported(RunSnapshot(state=RunState.COMPLETED, output=output))
