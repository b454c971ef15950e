"""Readiness, probes and metrics for operators' programs.

They are in front of Django, because Django's check of the Host header would refuse probes and scrapers that
use a machine's address. They accept no cookies, so that web pages cannot use them.
"""

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from celery import current_app
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.utils import timezone
from loguru import logger
from prometheus_client.core import GaugeMetricFamily
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from access.addresses import note_scheme
from catalogue.database import SharedReading, describe_pending_migrations, run_in_database
from catalogue.database_problems import MORE_CONNECTIONS, is_exhausted
from catalogue.models import Source
from config.celery import REDIS_LIMITS, SCHEME
from executions.local_worker import SILENCE
from executions.measures import read_measures
from executions.models import WorkerPresence
from mcp_bridge.transports.http import admit_reader
from telemetry import metrics, traces

MEASURES_SECONDS = 5.0  # How long scrapes share the figures read from the database
NO_STORE = {"Cache-Control": "no-store"}
AREAS = {
    "mcp": "mcp", "api": "rest", "tools": "rest", "workflow": "workflow", "admin": "admin", "login": "admin",
    "oauth": "oauth", "health": "monitoring", "metrics": "monitoring", "static": "static",
    "hooks": "webhook",
}  # fmt: skip
REMEMBERED_SECONDS = 1.0  # So that any number of probes cost one round of checks
BROKER_SECONDS = 5.0  # The same for the broker, which takes a connection
BROKER_PATIENCE_SECONDS = 2
PATIENCE_SECONDS = 10.0  # Then a probe is answered although a look is not over
NO_CONNECTION = "All connections of this process to the database are in use; the log says what to do."
NO_DATABASE = "The database cannot be queried; the log has the details."
UNRESPONSIVE = f"The database has not responded within {PATIENCE_SECONDS:.0f} s; the log says what to do."
UNKNOWN = "Unknown without the database."
CLOCKS = "If so, compare their clocks."
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Check:
    ok: bool
    reason: str  # Without names of servers, messages of errors and what else only operators should see


class Remembered(Generic[Found]):
    """Keeps what `look` finds; one thread at a time looks again when it is older than `seconds`."""

    def __init__(self, look: Callable[[], Found], seconds: float) -> None:
        self._look, self._seconds = look, seconds
        self._reading = SharedReading()
        self._known: tuple[float, Found] | None = None

    def __call__(self) -> Found:
        with self._reading.turn():
            if self._known is None or time.monotonic() - self._known[0] >= self._seconds:
                found = self._look()
                self._known = (time.monotonic(), found)
            return self._known[1]

    def forget(self) -> None:
        self._known = None


class Readiness:
    """Checks whether one process is ready."""

    def __init__(self) -> None:
        self._is_migrated = False
        self._check_broker = Remembered(_check_broker, BROKER_SECONDS)
        # By name. Needs a thread that may use the database.
        self.checks = Remembered(self._look, REMEMBERED_SECONDS)
        self._looking: asyncio.Future[dict[str, Check]] | None = None

    async def checks_in_time(self) -> dict[str, Check]:
        """Many probes wait for one look: each would otherwise hold one of the few threads that serve calls
        for as long as a server does not respond."""
        looking = self._looking
        if looking is None or looking.done() or looking.get_loop() is not asyncio.get_running_loop():
            looking = self._looking = run_in_database(self.checks)
        await asyncio.wait({looking}, timeout=PATIENCE_SECONDS)
        if looking.done():
            return looking.result()
        logger.bind(recurring="Not ready: no response").error(
            "Not ready: the database has not responded for {:.0f} s. If no line says that it refuses "
            "connections, look for a server or connection pooler that hangs, a full disk below it, and locks "
            "in pg_stat_activity",
            PATIENCE_SECONDS,
        )
        return _without_database(UNRESPONSIVE, broker=Check(False, UNKNOWN))

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]

    def _look(self) -> dict[str, Check]:
        try:
            migrations = self._check_migrations()
            presence = (
                WorkerPresence.objects.filter(pk=WorkerPresence.ONLY).first() if migrations.ok else None
            )
        except (DatabaseError, InterfaceError, OSError) as error:
            if is_exhausted(error):
                _log_problem("no connection to the database is free", f"{error}. {MORE_CONNECTIONS}")
                return _without_database(NO_CONNECTION, broker=self._check_broker())
            _log_problem("the database cannot be queried", error)
            return _without_database(NO_DATABASE, broker=self._check_broker())
        return {
            "database": Check(True, "It responds."),
            "migrations": migrations,
            "broker": (broker := self._check_broker()),
            "beat": _check_beat(presence, has_broker=broker.ok),
            "workers": _check_workers(presence),
        }

    def _check_migrations(self) -> Check:
        """Checked until all are applied, because they are not reverted while a process runs."""
        if not self._is_migrated:
            if problem := describe_pending_migrations():
                return Check(False, problem)
            self._is_migrated = True
        return Check(True, "All migrations are applied.")


def _log_problem(what: str, why: object) -> None:
    logger.bind(recurring=f"Not ready: {why}").error("Not ready: {}: {}", what, why)


def _check_broker() -> Check:
    if not settings.CELERY_BROKER_URL.get_secret_value().startswith(f"{SCHEME}:"):
        return _check_broker_server()
    folder = settings.DATA_DIR / "broker" / "messages"
    probe = folder / ".probe"
    try:
        probe.write_bytes(b".")  # A full disk takes empty files
        probe.unlink(missing_ok=True)
    except OSError as error:
        _log_problem(f"{folder}, the embedded broker's folder, is not writable", error.strerror)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Check(False, "The disk of the embedded broker's folder is full.")
        return Check(False, "The embedded broker's folder is not writable.")
    return Check(True, "Embedded: its folder is writable.")


def _without_database(reason: str, *, broker: Check) -> dict[str, Check]:
    lost = Check(False, UNKNOWN)
    of_database = {"database": Check(False, reason), "migrations": lost}
    return {**of_database, "broker": broker, "beat": lost, "workers": lost}


def _check_broker_server() -> Check:
    try:
        options = current_app.conf.broker_transport_options
        limits = dict.fromkeys(options.keys() & REDIS_LIMITS, BROKER_PATIENCE_SECONDS)
        with closing(
            current_app.connection_for_write(
                connect_timeout=BROKER_PATIENCE_SECONDS, transport_options=limits
            )
        ) as broker:
            broker.ensure_connection(max_retries=1, interval_start=0, timeout=BROKER_PATIENCE_SECONDS)
    except Exception as error:  # noqa: BLE001 - each transport has errors of its own; logged in the next line
        _log_problem(f"the broker cannot be reached: {type(error).__name__}", error)
        return Check(False, "It cannot be reached; the log has the details.")
    return Check(True, "It responds.")


def _check_beat(presence: WorkerPresence | None, *, has_broker: bool) -> Check:
    if presence is None or presence.seen_at == WorkerPresence.NEVER:
        ahead = -_age_of_last_sign(presence) if presence else timedelta()
        advice = _differ(ahead) if ahead > SILENCE else f"Are a worker and beat running? {CLOCKS}"
        return Check(False, f"No tick has been processed yet. {advice}")
    age = timezone.now() - presence.seen_at
    if age < -SILENCE:
        return Check(False, _differ(-age))
    if age < SILENCE:
        age = max(age, timedelta())
        return Check(True, f"The last tick was processed {age.total_seconds():.0f} s ago.")
    if not has_broker:
        advice = "Ticks need the broker."
    elif abs(_age_of_last_sign(presence)) < SILENCE:
        advice = f"A worker is running. Is beat running? {CLOCKS}"
    else:
        advice = "No worker is running to process one."
    return Check(False, f"The last tick was processed {age.total_seconds():.0f} s ago. {advice}")


def _check_workers(presence: WorkerPresence | None) -> Check:
    if presence is None:
        return Check(False, "No worker has been seen yet.")
    if presence.process and abs(timezone.now() - presence.seen_at) < SILENCE:
        return Check(True, "This process does the work of the workers itself.")
    age = _age_of_last_sign(presence)
    if age < -SILENCE:
        return Check(False, _differ(-age))
    seen = f"A worker was last seen {max(age, timedelta()).total_seconds():.0f} s ago."
    # The clock of one that is running may be behind.
    return Check(True, seen) if age < SILENCE else Check(False, f"{seen} Is one running? {CLOCKS}")


def _age_of_last_sign(presence: WorkerPresence) -> timedelta:
    """Returns the smaller distance from now: either sign may be from before the clock was set."""
    signs = (presence.seen_at, presence.worker_at or presence.seen_at)
    return min((timezone.now() - sign for sign in signs), key=abs)


def _differ(ahead: timedelta) -> str:
    by = f"{ahead.total_seconds():.0f} s ahead of this process"
    return f"The clocks differ: the last sign of a worker is dated {by}. Compare the clocks of the processes."


readiness = Readiness()


async def live(request: Request) -> Response:
    """Shows that the process responds, without using the database or a thread."""
    return JSONResponse({"status": "ok"}, headers=NO_STORE)


async def ready(request: Request) -> Response:
    """Returns 503 if a check fails that the query does not leave out."""
    found = await readiness.checks_in_time()
    left_out = {name for names in request.query_params.getlist("leave_out") for name in names.split(",")}
    if unknown := sorted(left_out - found.keys()):
        problem = f"leave_out: {unknown[0][:40]!r} is not a check. The checks are {', '.join(found)}."
        return JSONResponse({"detail": problem}, status_code=400, headers=NO_STORE)
    is_ready = all(check.ok for name, check in found.items() if name not in left_out)
    shown = {name: {"ok": check.ok, "reason": check.reason} for name, check in found.items()}
    status = "ready" if is_ready else "not ready"
    return JSONResponse(
        {"status": status, "checks": shown}, status_code=200 if is_ready else 503, headers=NO_STORE
    )


async def _refusal(request: Request) -> Response | None:
    refused = await admit_reader(request.scope)
    if refused is not None:
        refused.headers.update(NO_STORE)
    return refused


async def sources(request: Request) -> Response:
    if (refused := await _refusal(request)) is not None:
        return refused
    return JSONResponse({"sources": await run_in_database(_sources)}, headers=NO_STORE)


def _sources() -> list[dict[str, Any]]:
    named = ("name", "kind", "health_state", "health_error", "health_message", "failures")
    times = ("last_refreshed_at", "failing_since")
    shown = {"health_state": "state", "health_error": "error", "health_message": "message",
             "last_refreshed_at": "last_success"}  # fmt: skip
    return [
        {
            shown.get(name, name): value.isoformat() if name in times and value else value
            for name, value in row.items()
        }
        for row in Source.objects.filter(enabled=True).values(*named, *times)
    ]


async def show_metrics(request: Request) -> Response:
    if (refused := await _refusal(request)) is not None:
        return refused
    return Response(await run_in_database(collect), media_type=metrics.CONTENT_TYPE, headers=NO_STORE)


def collect() -> bytes:
    """Returns the metrics of this process, of others with the same data folder, and of the database. The
    latter are missing while the database cannot be queried; `catalogue_ready` shows that."""
    checks = readiness.checks()
    build = GaugeMetricFamily("catalogue_build_info", "The version, as a label.", labels=["version"])
    build.add_metric([settings.VERSION], 1)
    family = GaugeMetricFamily(
        "catalogue_ready", "The checks of /health/ready: 1 if all is well.", labels=["check"]
    )
    for name, check in checks.items():
        family.add_metric([name], check.ok)
    families = [*publication.families(), build, family]
    if checks["database"].ok and checks["migrations"].ok:
        try:
            families += _measures()
        except (DatabaseError, InterfaceError) as error:
            logger.error("Metrics are incomplete: the database cannot be queried: {}", error)
    return metrics.exposition(families)


_measures = Remembered(read_measures, MEASURES_SECONDS)
publication = metrics.Publication(settings.DATA_DIR / "metrics", settings.PROCESS)


def forget_measures() -> None:
    _measures.forget()
    readiness.forget()


ROUTES = [
    Route("/health/live", live),
    Route("/health/ready", ready),
    Route("/health/sources", sources),
    Route("/metrics", show_metrics),
]


class Observed:
    """ASGI middleware around everything: gives each request an id, which the response contains, and counts
    it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        note_scheme((scope.get("client") or ("",))[0], scope["headers"])
        identity = (b"x-request-id", traces.begin_request(scope["headers"]).encode())
        # The path of `OPTIONS *` has no slash.
        area = AREAS.get(scope["path"].removeprefix("/").partition("/")[0], metrics.OTHER)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), identity]
                metrics.http_requests.labels(area, metrics.status_class(message["status"])).inc()
            await send(message)

        return self._app(scope, receive, send_with_id)
