"""Discovery: listing one source at a time under a lease, and reconciling the catalogue with the listing. A
listing that fails or is held changes nothing but the source's health."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce
from django.utils import timezone
from loguru import logger

from catalogue.connections import connector_for, describe_bug
from catalogue.database import run_in_database, run_without_connection
from catalogue.features import KEPT, read_features, reconcile_features
from catalogue.models import DiscoveryRun, Source
from catalogue.naming import counted
from catalogue.reconciliation import ListingHeld, Superseded, read_listing, reconcile
from connectors.background import CLOCKS_APART
from connectors.definitions import FeatureDefinition, RejectedDefinition, WorkflowDefinition
from connectors.errors import ConnectorError, InvalidAnswer, Unreachable, backoff_seconds, error_name
from connectors.protocol import Connector, Health
from telemetry import metrics

LISTING_TIMEOUT_SECONDS = 300.0
FEATURES_TIMEOUT_SECONDS = 100.0  # Part of LISTING_TIMEOUT_SECONDS
LEASE = timedelta(seconds=60)
RENEWAL_SECONDS = 15.0  # Short enough to free the source within a minute after its process is killed
MAX_TURN_SECONDS = 2 * (LISTING_TIMEOUT_SECONDS + LEASE.total_seconds())  # Several callers may wait
LOOK_AGAIN_SECONDS = 0.5
FIRST_RETRY_SECONDS = 15
MAX_RETRY_SECONDS = 3600
MAX_NAMED_IN_LOG = 10


class RefreshRefused(Exception):
    """The source cannot be refreshed now."""


class BeingRefreshed(RefreshRefused):
    """Another listing of the source is in progress."""


def refresh_source(
    source: Source, *, trigger: DiscoveryRun.Trigger = DiscoveryRun.Trigger.MANUAL, waits: bool = False
) -> DiscoveryRun:
    """List the source's workflows and reconcile the catalogue, or check the engine of a source without
    listings. Returns the finished run, also if the listing failed or is held. Raises RefreshRefused for a
    disabled or deleted source, and BeingRefreshed. `waits`: wait for the listing in progress, which may miss
    what the caller wants to see, and list again."""
    deadline = time.monotonic() + (MAX_TURN_SECONDS if waits else 0)  # The lease of a killed process expires
    while True:
        try:
            source = _claim(source)
            break
        except BeingRefreshed:
            if time.monotonic() >= deadline:
                raise
        time.sleep(LOOK_AGAIN_SECONDS)
    try:
        for abandoned in source.discovery_runs.filter(outcome=DiscoveryRun.Outcome.RUNNING):
            abandoned.finish(outcome=DiscoveryRun.Outcome.FAILED, error="It was abandoned before it ended.")
        run = DiscoveryRun.objects.create(source=source, trigger=trigger)
        _list_and_record(source, run)
        return run
    finally:
        _leased(source).update(refresh_lease_expires_at=None)


def due_sources() -> list[int]:
    """Ids of the sources to list now; none while discovery is off (A4.1)."""
    if not settings.CATALOGUE.discovery_enabled:
        return []
    return list(Source.objects.due(timezone.now()).values_list("pk", flat=True))


def correct_times() -> None:
    """Limit plans and leases from a clock that was ahead to what the present time allows; a source that was
    listed in the future is due."""
    now = timezone.now()
    ahead, leased = now + CLOCKS_APART, now + CLOCKS_APART + LEASE
    wrong = Q(last_refreshed_at__gt=ahead) | Q(next_refresh_at__gt=ahead)
    wrong |= Q(refresh_lease_expires_at__gt=leased)
    for source in Source.objects.filter(wrong, enabled=True):
        changes: dict[str, datetime] = {}
        longest = timedelta(seconds=max(source.effective_refresh_interval, MAX_RETRY_SECONDS))
        if source.last_refreshed_at is not None and source.last_refreshed_at > ahead:
            changes["last_refreshed_at"] = now
            if source.next_refresh_at is not None:
                changes["next_refresh_at"] = min(source.next_refresh_at, now)
        elif source.next_refresh_at is not None and source.next_refresh_at > ahead + longest:
            changes["next_refresh_at"] = now
        # A process that still lists it renews its lease, or gives way.
        if source.refresh_lease_expires_at is not None and source.refresh_lease_expires_at > leased:
            changes["refresh_lease_expires_at"] = now + LEASE
        if changes:
            Source.objects.filter(wrong, pk=source.pk).update(**changes)


def make_due(sources: QuerySet[Source]) -> int:
    """Have the worker list them next. Returns how many; 0 while discovery is off."""
    if not settings.CATALOGUE.discovery_enabled:
        return 0
    return sources.filter(enabled=True).update(next_refresh_at=timezone.now())


def list_again_after_outage(source_name: str) -> None:
    """The engine answers again. A listing that failed would be repeated after up to an hour."""
    waits = Source.objects.filter(name=source_name, failures__gt=0, next_refresh_at__gt=timezone.now())
    make_due(waits)


def sources_to_list_at_start() -> list[int]:
    """Ids of the sources that are refreshed automatically (A1.1)."""
    if not settings.CATALOGUE.discovery_enabled:
        return []
    return [source.pk for source in Source.objects.filter(enabled=True) if source.effective_refresh_interval]


def give_up_listings(source_ids: Collection[int]) -> None:
    """Free the leases of a process that is about to end."""
    Source.objects.filter(pk__in=source_ids).update(refresh_lease_expires_at=None)


def _claim(source: Source) -> Source:
    """Lease the source and read it again: the caller's instance may be old."""
    now = timezone.now()
    free = Source.objects.filter(pk=source.pk, enabled=True).exclude(refresh_lease_expires_at__gte=now)
    if free.update(refresh_lease_expires_at=now + LEASE) == 1:
        return Source.objects.get(pk=source.pk)
    current = Source.objects.filter(pk=source.pk).first()
    if current is None:
        raise RefreshRefused(f"Source {source.name} no longer exists.")
    if not current.enabled:
        raise RefreshRefused(f"Source {source.name} is disabled.")
    raise BeingRefreshed(f"Source {source.name} is already being refreshed.")


def _leased(source: Source) -> QuerySet[Source]:
    """The source's row while the lease is ours; empty once another listing took it."""
    return Source.objects.filter(pk=source.pk, refresh_lease_expires_at=source.refresh_lease_expires_at)


def _list_and_record(source: Source, run: DiscoveryRun) -> None:
    log = logger.bind(source=source.name)
    try:
        summary = _list_and_reconcile(source, run)
    except Superseded as error:
        log.warning("Discovery without effect: {}", error)
        metrics.discovery_runs.labels("superseded").inc()
        run.finish(outcome=DiscoveryRun.Outcome.FAILED, error=str(error))
        return
    except ListingHeld as error:
        _record_held_listing(source, run, error)
    except ConnectorError as error:
        _record_failure(source, run, error)
    except Exception as error:
        log.exception("Discovery failed because of an internal error")
        _record_failure(source, run, ConnectorError(describe_bug(source, error)))
    else:
        _record_success(source, run, summary)
    metrics.discovery_runs.labels(str(run.outcome)).inc()


def _list_and_reconcile(source: Source, run: DiscoveryRun) -> str:
    """Returns the result in a sentence. Raises ConnectorError, and what `reconcile` raises."""
    answer = run_without_connection(_list_under_lease(source))
    if not isinstance(answer, Health):
        reconcile(source, read_listing(answer.workflows), run)
        told = f"Workflows listed: {run.found}."
        if run.found and run.skipped_count:
            told = f"Workflows listed: {run.found}, {run.skipped_count} skipped."
        elif run.skipped:
            first, others = run.skipped[0], run.skipped_count - 1
            named = first["name"] or first["id"] or "(no id)"
            told += f" {named}: {first['reason'].removesuffix('.')}."
            told += f" {counted(others, 'more was', 'more were')} skipped." if others else ""
        # A failure to list prompts and resources does not affect the listing of tools.
        if answer.features is not None:
            told += reconcile_features(source, read_features(answer.features), run)
        elif answer.features_problem:
            told += f" Its prompts and resources could not be listed: {answer.features_problem} {KEPT}"
        return told
    if not answer.ok:
        raise ConnectorError(answer.message)
    return f"Its workflows are declared in the catalogue. {answer.message}"


@dataclass(frozen=True, slots=True)
class _Listing:
    workflows: list[WorkflowDefinition | RejectedDefinition]
    features: list[FeatureDefinition | RejectedDefinition] | None = None  # None: unknown
    features_problem: str = ""


async def _list_under_lease(source: Source) -> _Listing | Health:
    listing_task = asyncio.create_task(_list(source))
    try:
        while not (await asyncio.wait({listing_task}, timeout=RENEWAL_SECONDS))[0]:
            await run_in_database(_renew, source)
    finally:
        listing_task.cancel()
    return await listing_task


def _renew(source: Source) -> None:
    later = timezone.now() + LEASE
    try:
        if _leased(source).update(refresh_lease_expires_at=later):
            source.refresh_lease_expires_at = later
    except (OperationalError, InterfaceError) as error:
        # The lease outlasts several failed renewals.
        logger.bind(source=source.name).warning("The lease of a listing was not renewed: {}", error)


async def _list(source: Source) -> _Listing | Health:
    """The engine's listing, or the health of an engine without listings."""
    try:
        async with asyncio.timeout(LISTING_TIMEOUT_SECONDS), connector_for(source) as connector:
            if not connector.capabilities.lists_workflows:
                return await connector.check()
            listing: list[Any] = [item async for item in connector.discover()]
            features, problem = None, ""
            if connector.capabilities.has_features:
                features, problem = await _list_features(connector)
    except TimeoutError:
        raise Unreachable(f"The listing took longer than {LISTING_TIMEOUT_SECONDS:g} s.") from None
    for item in listing:
        if not isinstance(item, WorkflowDefinition | RejectedDefinition):
            made = "parse_definition makes a definition of an object"
            raise TypeError(f"discover() yielded {type(item).__name__}; {made}")
    # With no object that has an id, all workflows would count as missing.
    nameless = [item for item in listing if isinstance(item, RejectedDefinition) and not item.id]
    if nameless and len(nameless) == len(listing):
        raise InvalidAnswer(f"No object of the listing can be read. The first: {nameless[0].reason}.")
    return _Listing(listing, features, problem)


async def _list_features(
    connector: Connector,
) -> tuple[list[FeatureDefinition | RejectedDefinition] | None, str]:
    """A server's prompts and resources, and why they are unknown."""
    try:
        async with asyncio.timeout(FEATURES_TIMEOUT_SECONDS):
            return [item async for item in connector.list_features()], ""
    except ConnectorError as error:
        return None, error.message
    except TimeoutError:
        return None, f"It took longer than {FEATURES_TIMEOUT_SECONDS:g} s."


def _record_success(source: Source, run: DiscoveryRun, summary: str) -> None:
    run.finish(outcome=DiscoveryRun.Outcome.SUCCEEDED)
    message = summary
    if hidden := source.workflows.filter(enabled=True).exclude(missing_since=None).count():
        what_is = counted(hidden, "enabled workflow is", "enabled workflows are")
        message += f" Warning: {what_is} no longer listed."
    _write_health(source, Source.HealthState.OK, message, wait=source.effective_refresh_interval)
    log = logger.bind(source=source.name)
    # Repeated at each listing, the same lines would hide new ones.
    succeeded = run.source.discovery_runs.filter(outcome=DiscoveryRun.Outcome.SUCCEEDED).exclude(pk=run.pk)
    before = succeeded.first()
    known = Counter(map(_what_was_skipped, before.skipped if before else ()))
    for skipped in run.skipped:
        what = _what_was_skipped(skipped)
        known[what] -= 1
        level = "DEBUG" if known[what] >= 0 else "WARNING"
        named = f"{skipped['id']!r} ({skipped['name']!r}) at position {skipped['position']}"
        log.log(level, "Skipped workflow {}: {}", named, skipped["reason"])
    if run.missing:
        # Later listings lack the same ones; the source's page and REST name them as long as they do.
        gone = ", ".join(one["tool_name"] for one in run.changes.get("missing", ())[:MAX_NAMED_IN_LOG])
        more = f" and {run.missing - MAX_NAMED_IN_LOG} more" if run.missing > MAX_NAMED_IN_LOG else ""
        text = "The engine no longer lists {}, whose tools are hidden until it does: {}{}"
        log.warning(text, counted(run.missing, "workflow"), gone, more)
    counts = f"{run.added} added, {run.updated} updated, {run.returned} returned, {run.missing} missing"
    log.info("Discovery: {} {}, {} skipped in {} ms", summary, counts, run.skipped_count, run.duration_ms)


def _what_was_skipped(skipped: dict[str, Any]) -> tuple[str, str, str]:
    """Leaves out the position, which shifts with each workflow before it."""
    return skipped["id"], skipped["name"], skipped["reason"]


def _record_held_listing(source: Source, run: DiscoveryRun, error: ListingHeld) -> None:
    # Only the latest of the same held listings keeps its names, to save space.
    same = source.discovery_runs.filter(
        outcome=DiscoveryRun.Outcome.HELD, vanishing_digest=run.vanishing_digest
    )
    DiscoveryRun.objects.filter(pk__in=list(same.values_list("pk", flat=True)[:1])).update(changes={})
    run.finish(outcome=DiscoveryRun.Outcome.HELD, error=str(error))
    state, wait = Source.HealthState.HELD, source.effective_refresh_interval
    _write_health(source, state, str(error), wait=wait, error="held")
    logger.bind(source=source.name).warning("Discovery: {}", error)


def _record_failure(source: Source, run: DiscoveryRun, error: ConnectorError) -> None:
    run.finish(outcome=DiscoveryRun.Outcome.FAILED, error=error.message)
    state, wait = Source.HealthState.FAILING, _retry_wait(source, error)
    name, more = error_name(error), F("failures") + 1
    _write_health(source, state, error.message, wait=wait, error=name, failures=more)
    when = f"in {wait:.0f} s" if wait else "by hand"
    log = logger.bind(source=source.name, error=type(error).__name__)
    log.warning("Discovery failed, the last good list stays; next try {}: {}", when, error.message)


def _write_health(
    source: Source,
    state: Source.HealthState,
    message: str,
    *,
    wait: float,
    error: str | None = None,
    failures: Any = 0,
) -> None:
    """`wait`: seconds until the next listing; 0: none. A refresh requested during the listing stays due."""
    now = timezone.now()
    planned = Value(
        now + timedelta(seconds=wait) if wait else None,
        output_field=Source._meta.get_field("next_refresh_at"),
    )
    as_found = Q(next_refresh_at=source.next_refresh_at)
    _leased(source).update(
        health_state=state,
        health_message=message,
        health_error=error,
        failures=failures,
        failing_since=Coalesce("failing_since", now) if error else None,
        last_refreshed_at=F("last_refreshed_at") if error else now,
        next_refresh_at=Case(When(as_found, then=planned), default=F("next_refresh_at")),
    )


def _retry_wait(source: Source, error: ConnectorError) -> float:
    """Seconds, doubled with each failure in a row, and at least what the engine asks for (A5.4). After the
    last retry (B4) at least the refresh interval. 0 without automatic refreshes."""
    interval = source.effective_refresh_interval
    if not interval:
        return 0.0
    backoff = backoff_seconds(source.failures, first=FIRST_RETRY_SECONDS, longest=MAX_RETRY_SECONDS)
    if source.failures >= settings.CATALOGUE.retry_attempts:
        backoff = max(backoff, interval)
    asked = error.retry_after if isinstance(error, Unreachable) else None
    return max(backoff, asked or 0.0)
