"""Deliveries of engines' webhooks, which report that a run has ended.

A report only makes the run's next poll due now, and the engine's answer to the poll counts. A forged or
repeated report therefore costs at most one poll, no earlier than the engine's minimum interval. Polling
continues without reports, and is less frequent while reports arrive.
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta

from django.utils import timezone
from loguru import logger

from access.callers import Rate
from access.rates import seconds_until_free
from catalogue.connections import connector_for
from catalogue.database import run_without_connection
from catalogue.models import Source
from connectors.errors import ConnectorError, InvalidAnswer, Misconfigured, NotGenuine
from connectors.network.redaction import printable, shorten
from connectors.protocol import Delivery, ReportedEnd
from executions.models import Execution, State
from executions.wakeups import request_poll, wake
from telemetry import metrics

DELIVERIES_PER_MINUTE, DELIVERIES_AT_ONCE = 1_200, 200  # Genuine ones, of a source
NOTED_EVERY = timedelta(seconds=10)  # How often a source's record of deliveries is written
MAX_RUNS = 10  # With one id; engines whose ids are unique have one
MAX_STARTS = 100
LATE = timedelta(seconds=15)  # A run that ended longer ago without a report has been missed
REASON_CHARACTERS = 500


class Refused(Exception):
    """The message is for administrators."""

    outcome = "refused"


class NotProven(Refused):
    """It is not proven that the engine sent it; the sender learns only this."""


class Unreadable(Refused):
    """Genuine, but not as declared. The message is for the sender too."""

    outcome = "unreadable"


class TooMany(Refused):
    outcome = "too_many"

    def __init__(self, seconds: int) -> None:
        super().__init__(f"More than {DELIVERIES_PER_MINUTE:,} deliveries a minute.")
        self.seconds = seconds


def take_delivery(source_name: str, headers: Mapping[str, str], body: bytes) -> None:
    """Raises Refused. Accepts repeated deliveries, and those about other clients' runs."""
    delivery = Delivery(headers=headers, body=body, received_at=timezone.now())
    source = Source.objects.filter(name=source_name).first()
    try:
        if source is None:
            raise NotProven("No source has this name.")
        end = _read(source, delivery)
        rate = Rate(
            key=f"webhook:{source.pk}",
            per_minute=DELIVERIES_PER_MINUTE,
            at_once=DELIVERIES_AT_ONCE,
            whose=f"the webhook of {source.name}",
        )
        if (seconds := seconds_until_free(rate)) > 0:
            raise TooMany(math.ceil(seconds))
        if isinstance(end, InvalidAnswer):
            raise Unreadable(end.message)
    except Refused as refused:
        metrics.webhook_deliveries.labels(refused.outcome).inc()
        raise
    _note(source, "webhook_received_at", delivery.received_at)
    is_known = end is not None and _report(source, end, delivery.received_at)
    metrics.webhook_deliveries.labels("reported" if is_known else "ignored").inc()


def note_refusal(source_name: str, why: str) -> None:
    """Records it for the source's page; the caller limits how often unauthenticated senders get here."""
    if (source := Source.objects.filter(name=source_name).first()) is not None:
        reason = shorten(printable(why), REASON_CHARACTERS)
        _note(source, "webhook_refused_at", timezone.now(), webhook_refusal=reason)


def _note(source: Source, name: str, at: datetime, **more: str) -> None:
    """Stores it without a new revision, since agents do not see it."""
    noted = getattr(source, name)
    if noted is None or noted < at - NOTED_EVERY:
        Source.objects.filter(pk=source.pk).update(**{name: at, **more})


def _read(source: Source, delivery: Delivery) -> ReportedEnd | InvalidAnswer | None:
    """Raises NotProven."""

    async def read() -> ReportedEnd | ConnectorError | None:
        async with connector_for(source) as connector:
            if not connector.capabilities.reports_ends:
                return NotGenuine("The source has no webhook, or no secret for it.")
            try:
                return connector.read_delivery(delivery)
            except ConnectorError as error:
                # Not raised: it would count as an error of the engine, and any sender can cause it.
                return error
            except Exception:  # noqa: BLE001 - another package's connector may raise anything
                logger.exception("A connector failed to read a delivery")
                return NotGenuine("The connector failed; the log has the details.")

    try:
        read_as = run_without_connection(read())
    except Misconfigured as error:
        raise NotProven(f"The delivery could not be checked: {error.message}") from None
    if isinstance(read_as, ConnectorError) and not isinstance(read_as, InvalidAnswer):
        raise NotProven(read_as.message)
    return read_as


def _report(source: Source, end: ReportedEnd, now: datetime) -> bool:
    """Returns whether it reports a run of this product."""
    ours = Execution.objects.filter(workflow__source=source).order_by("-created_at")
    if end.workflow_id:
        ours = ours.filter(upstream_id=end.workflow_id)
    meant, starting = ours.filter(run_id=end.run_id)[:MAX_RUNS], list[Execution]()
    known = list(meant.all())
    if all(execution.is_settled for execution in known):
        # The answer to one of these starts may not be recorded yet: its first poll is then immediate.
        unanswered = ours.filter(state=State.STARTING, end_reported_at=None)
        if known:
            # It has ended before: now only a retry from its failed step can have.
            unanswered = unanswered.filter(retried_run_id=end.run_id)
        starting = list(unanswered[:MAX_STARTS])
        # Or it was recorded between the two queries.
        known = list(meant.all())
    if known:
        _note(source, "webhook_matched_at", now)
    # One by one: two deliveries that lock the same rows together could deadlock.
    for execution in [one for one in known if not one.is_settled] or starting:
        if execution.report_end() and not wake(execution.pk) and execution.state == State.RUNNING:
            request_poll()
    return bool(known)


def stop_relying_if_missed(execution: Execution, *, ended_at: datetime) -> None:
    """Poll the source's runs as often as without a webhook, if it should have reported this end long ago."""
    source = None if execution.workflow is None else execution.workflow.source
    if source is None or source.webhook_matched_at is None or timezone.now() - ended_at < LATE:
        return
    if Execution.objects.filter(pk=execution.pk, end_reported_at=None).exists():
        Source.objects.filter(pk=source.pk).update(webhook_matched_at=None)
        logger.bind(source=source.name, execution=execution.pk).warning(
            "The webhook of {} did not report this end; its runs are polled more often again.", source.name
        )
