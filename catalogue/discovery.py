"""Discovery: what an engine lists now becomes what the catalogue knows of it.

One source at a time, under a lease; a listing that fails changes nothing but the source's health.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce
from django.utils import timezone
from loguru import logger

from catalogue.connections import connector_for
from catalogue.database import run_without_connection
from catalogue.models import DiscoveryRun, Source
from catalogue.reconciliation import Superseded, read_listing, reconcile
from connectors.definitions import RejectedDefinition, WorkflowDefinition
from connectors.errors import ConnectorError, Unreachable
from connectors.protocol import Health

LISTING_TIMEOUT_SECONDS = 300.0
LEASE = timedelta(seconds=LISTING_TIMEOUT_SECONDS + 60)
FIRST_RETRY_SECONDS = 15
LONGEST_RETRY_SECONDS = 3600


class RefreshRefused(Exception):
    """The source cannot be refreshed now; the message says why."""


def refresh_source(
    source: Source, *, trigger: DiscoveryRun.Trigger = DiscoveryRun.Trigger.MANUAL
) -> DiscoveryRun:
    """List the source's workflows and reconcile the catalogue with them; check those that list nothing.

    Returns the finished run, also for a listing that failed. Raises RefreshRefused when the source is
    switched off, deleted or being refreshed already.
    """
    source = _claim(source)
    try:
        for abandoned in source.discovery_runs.filter(outcome=DiscoveryRun.Outcome.RUNNING):
            abandoned.finish(
                outcome=DiscoveryRun.Outcome.FAILED, error="It was given up before it had ended."
            )
        run = DiscoveryRun.objects.create(source=source, trigger=trigger)
        return _refresh(source, run)
    finally:
        _held(source).update(refresh_lease_expires_at=None)


def due_sources() -> list[int]:
    """The ids of the sources whose listing is due; none while discovery is off (A4.1)."""
    if not settings.CATALOGUE["discovery_enabled"]:
        return []
    return list(Source.objects.due(timezone.now()).values_list("pk", flat=True))


def make_due(sources: QuerySet[Source]) -> int:
    """Have the worker list them next. Returns how many; 0 while discovery is off, when it would not."""
    if not settings.CATALOGUE["discovery_enabled"]:
        return 0
    return sources.filter(enabled=True).update(next_refresh_at=timezone.now())


def sources_to_list_at_start() -> list[int]:
    """The ids of the sources that are refreshed by themselves at all (A1.1)."""
    if not settings.CATALOGUE["discovery_enabled"]:
        return []
    return [source.pk for source in Source.objects.filter(enabled=True) if source.effective_refresh_interval]


def _claim(source: Source) -> Source:
    """The source as it is now, leased to us: whoever had it at hand may have read it long ago."""
    now = timezone.now()
    free = Source.objects.filter(pk=source.pk, enabled=True).exclude(refresh_lease_expires_at__gte=now)
    if free.update(refresh_lease_expires_at=now + LEASE) == 1:
        return Source.objects.get(pk=source.pk)
    current = Source.objects.filter(pk=source.pk).first()
    if current is None:
        raise RefreshRefused(f"Source {source.name} no longer exists.")
    reason = "is being refreshed already" if current.enabled else "is switched off"
    raise RefreshRefused(f"Source {source.name} {reason}.")


def _held(source: Source) -> QuerySet[Source]:
    """The source's row as long as it is leased to us; empty once another listing took over."""
    return Source.objects.filter(pk=source.pk, refresh_lease_expires_at=source.refresh_lease_expires_at)


def _refresh(source: Source, run: DiscoveryRun) -> DiscoveryRun:
    log = logger.bind(source=source.name)
    try:
        told = _take_in(source, run)
    except Superseded as error:
        log.warning("Discovery without effect: {}", error)
        return run.finish(outcome=DiscoveryRun.Outcome.FAILED, error=str(error))
    except ConnectorError as error:
        _record_failure(source, run, error)
    except Exception:
        log.exception("Discovery failed by an error of ours")
        ours = ConnectorError("An error of ours, not of the engine; the log has the details.")
        _record_failure(source, run, ours)
    else:
        _record_success(source, run, told)
    return run


def _take_in(source: Source, run: DiscoveryRun) -> str:
    """What came of it, in a sentence. Raises ConnectorError, and Superseded like `reconcile`."""
    answer = run_without_connection(_ask(source))
    if not isinstance(answer, Health):
        reconcile(source, read_listing(answer), run)
        return f"{run.found} workflows listed.{_why_none(run)}"
    if not answer.ok:
        raise ConnectorError(answer.message)
    return f"Its workflows are declared here. {answer.message}"


def _why_none(run: DiscoveryRun) -> str:
    """What may explain a listing that brought nothing; empty where nothing was left out of it."""
    if run.found or not run.skipped:
        return ""
    first, others = run.skipped[0], run.skipped_count - 1
    named = first["name"] or first["id"] or "(no id)"
    told = f" {named}: {first['reason'].removesuffix('.')}."
    return f"{told} And {others} more were left out." if others else told


async def _ask(source: Source) -> list[WorkflowDefinition | RejectedDefinition] | Health:
    """The engine's listing; of an engine that lists nothing, whether it can be reached."""
    try:
        async with asyncio.timeout(LISTING_TIMEOUT_SECONDS), connector_for(source) as connector:
            if not connector.capabilities.lists_workflows:
                return await connector.check()
            return [item async for item in connector.discover()]
    except TimeoutError:
        raise Unreachable(f"The listing took longer than {LISTING_TIMEOUT_SECONDS:g} s.") from None


def _record_success(source: Source, run: DiscoveryRun, told: str) -> None:
    run.finish(outcome=DiscoveryRun.Outcome.SUCCEEDED)
    now = timezone.now()
    interval = source.effective_refresh_interval
    _held(source).update(
        health_state=Source.HealthState.OK,
        health_message=told,
        failing_since=None,
        failures=0,
        last_refreshed_at=now,
        next_refresh_at=_unless_moved(source, now + timedelta(seconds=interval) if interval else None),
    )
    log = logger.bind(source=source.name)
    # At every listing the same lines would hide the new ones.
    known = _skipped_before(run)
    for skipped in run.skipped:
        log.log(
            "DEBUG" if skipped in known else "WARNING",
            "Skipped workflow {!r} ({!r}) at position {}: {}",
            skipped["id"],
            skipped["name"],
            skipped["position"],
            skipped["reason"],
        )
    log.info(
        "Discovery: {} {} found, {} added, {} updated, {} returned, {} missing, {} skipped in {} ms",
        told,
        run.found,
        run.added,
        run.updated,
        run.returned,
        run.missing,
        run.skipped_count,
        run.duration_ms,
    )


def _skipped_before(run: DiscoveryRun) -> list[dict[str, Any]]:
    succeeded = run.source.discovery_runs.filter(outcome=DiscoveryRun.Outcome.SUCCEEDED).exclude(pk=run.pk)
    before = succeeded.first()
    return [] if before is None else before.skipped


def _record_failure(source: Source, run: DiscoveryRun, error: ConnectorError) -> None:
    run.finish(outcome=DiscoveryRun.Outcome.FAILED, error=error.message)
    now = timezone.now()
    wait = _retry_wait(source, error)
    _held(source).update(
        health_state=Source.HealthState.FAILING,
        health_message=error.message,
        failing_since=Coalesce("failing_since", now),
        failures=F("failures") + 1,
        next_refresh_at=_unless_moved(source, now + timedelta(seconds=wait) if wait else None),
    )
    logger.bind(source=source.name, error=type(error).__name__).warning(
        "Discovery failed, the last good list stays; next try {}: {}",
        f"in {wait:.0f} s" if wait else "by hand",
        error.message,
    )


def _unless_moved(source: Source, planned: datetime | None) -> Case:
    """Who made the source due while it was listed wants another listing than that one."""
    as_found = Q(next_refresh_at=source.next_refresh_at)
    field = Source._meta.get_field("next_refresh_at")
    return Case(When(as_found, then=Value(planned, output_field=field)), default=F("next_refresh_at"))


def _retry_wait(source: Source, error: ConnectorError) -> float:
    """Seconds that double with each failure in a row, never fewer than the engine asked for (A5.4).

    0 where nothing is tried again by itself.
    """
    if not source.effective_refresh_interval:
        return 0.0
    backoff: float = min(FIRST_RETRY_SECONDS * 2 ** min(source.failures, 10), LONGEST_RETRY_SECONDS)
    asked = error.retry_after if isinstance(error, Unreachable) else None
    return max(backoff, asked or 0.0)
