"""What operators' programs ask: probes and metrics. In front of Django, whose check of the Host header would
refuse probes and scrapers that name a machine's address; without cookies, so that no page can use it."""

import threading
import time
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError
from loguru import logger
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from catalogue.database import run_in_database
from catalogue.models import Source
from config.health import Check, readiness
from executions.measures import read_measures
from mcp_bridge.transports.http import admit_reader
from telemetry import metrics, traces

MEASURES_SECONDS = 5.0  # How long what was read from the database answers further scrapes
NO_STORE = {"Cache-Control": "no-store"}
AREAS = {
    "mcp": "mcp", "api": "rest", "tools": "rest", "workflow": "workflow", "admin": "admin", "login": "admin",
    "oauth": "oauth", "health": "monitoring", "metrics": "monitoring", "static": "static",
    "hooks": "webhook",
}  # fmt: skip


async def live(request: Request) -> Response:
    """The process answers: neither the database nor a thread is asked."""
    return JSONResponse({"status": "ok"}, headers=NO_STORE)


async def ready(request: Request) -> Response:
    """503 if a check fails that the query does not leave out."""
    found = await run_in_database(readiness.checks)
    left_out = {name for names in request.query_params.getlist("leave_out") for name in names.split(",")}
    if unknown := sorted(left_out - found.keys()):
        problem = f"leave_out: there is no check {unknown[0][:40]!r}, only {', '.join(found)}."
        return JSONResponse({"detail": problem}, status_code=400, headers=NO_STORE)
    is_ready = all(check.ok for name, check in found.items() if name not in left_out)
    shown = {name: {"ok": check.ok, "reason": check.reason} for name, check in found.items()}
    status = "ready" if is_ready else "not ready"
    return JSONResponse(
        {"status": status, "checks": shown}, status_code=200 if is_ready else 503, headers=NO_STORE
    )


async def sources(request: Request) -> Response:
    if (refused := await admit_reader(request.scope)) is not None:
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
    if (refused := await admit_reader(request.scope)) is not None:
        return refused
    return Response(await run_in_database(collect), media_type=metrics.CONTENT_TYPE, headers=NO_STORE)


def collect() -> bytes:
    """This process, the others of its data folder, and what the database knows; that is left out while the
    database cannot be asked, which `catalogue_ready` says."""
    checks = readiness.checks()
    families = [*publication.families(), *_readiness(checks)]
    if checks["database"].ok and checks["migrations"].ok:
        try:
            families += _measures.read()
        except (DatabaseError, InterfaceError) as error:
            logger.error("Metrics are incomplete, since the database cannot be asked: {}", error)
    return metrics.exposition(families)


def _readiness(checks: dict[str, Check]) -> list[Metric]:
    build = GaugeMetricFamily("catalogue_build_info", "The version, as a label.", labels=["version"])
    build.add_metric([settings.VERSION], 1)
    family = GaugeMetricFamily(
        "catalogue_ready", "The checks of /health/ready: 1 if all is well.", labels=["check"]
    )
    for name, check in checks.items():
        family.add_metric([name], check.ok)
    return [build, family]


class _Measures:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at, self._known = float("-inf"), list[Metric]()

    def read(self) -> list[Metric]:
        with self._lock:
            if time.monotonic() - self._read_at >= MEASURES_SECONDS:
                self._known = read_measures()
                self._read_at = time.monotonic()
            return self._known

    def forget(self) -> None:
        self._read_at = float("-inf")


_measures = _Measures()
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
    """ASGI middleware around everything: gives each request its id, which the answer names, and counts it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        identity = (b"x-request-id", traces.begin_request(scope["headers"]).encode())
        area = AREAS.get(scope["path"].split("/", 2)[1], metrics.OTHER)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), identity]
                _counted(area, message["status"]).inc()
            await send(message)

        await self._app(scope, receive, send_with_id)


def _counted(area: str, status: int) -> Any:
    # `labels` looks the series up under a lock and checks the names each time.
    key = area, status
    if (series := _series.get(key)) is None:
        series = _series[key] = metrics.http_requests.labels(area, metrics.status_class(status))
    return series


_series: dict[tuple[str, int], Any] = {}
