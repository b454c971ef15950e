"""The ASGI application: MCP and Django side by side below Starlette, which handles the lifespan."""

import gc
import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup(set_prefix=False)

from collections.abc import AsyncIterator  # noqa: E402
from contextlib import asynccontextmanager  # noqa: E402 - the rooms need Django to be set up
from typing import cast  # noqa: E402

from django.conf import settings  # noqa: E402
from django.core.management import CommandError  # noqa: E402
from django.urls import reverse  # noqa: E402
from loguru import logger  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.routing import Route  # noqa: E402
from starlette.types import ASGIApp  # noqa: E402

from catalogue.management.base import serve_metrics  # noqa: E402
from config.monitoring import ROUTES, Observed, publication  # noqa: E402
from config.web_server import ThreadHandler  # noqa: E402
from connectors.network import connections  # noqa: E402, F401 - not within the first call, as it takes 0.1 s
from connectors.registry import connector_kinds  # noqa: E402
from executions.asking import end_readers  # noqa: E402
from identity.bearers import is_known  # noqa: E402
from identity.doorkeeper import CrossOrigin, doorkeeper  # noqa: E402
from identity.tokens import METADATA_PATH  # noqa: E402
from mcp_bridge.transports.http import McpEndpoint, protected_resource_metadata  # noqa: E402
from telemetry.traces import finish_spans  # noqa: E402

MCP_PATHS = ("/mcp", "/mcp/", "/mcp/{slug}", "/mcp/{slug}/")


class _ProtectedResourceMetadata:
    """A class, because Starlette passes a request instead of the ASGI triple to functions."""

    __call__ = staticmethod(protected_resource_metadata)


def build_application() -> Starlette:
    """Its lifespan can be entered once."""
    endpoint = McpEndpoint()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with endpoint.session_manager.run():
            # Imports the admin and REST, and compiles their addresses, before the first request.
            reverse("admin:index")
            connector_kinds()  # A process without free file descriptors would find no packages.
            # All of these objects stay. Visiting them again and again costs a fifth of each call.
            gc.collect()
            gc.freeze()
            gc.set_threshold(10_000, 20, 50)
            publication.begin()
            # Serves them under servers other than our command, which has done it. Of their several processes,
            # one has the address, and the others serve all else.
            try:
                serve_metrics(settings.METRICS_ADDRESS)
            except CommandError as error:
                logger.error("{}", error)
            try:
                yield
            finally:
                publication.end()
                end_readers()
                finish_spans()

    application = Starlette(
        routes=[
            *ROUTES,
            *(Route(path, endpoint) for path in MCP_PATHS),
            *(Route(f"{METADATA_PATH}{path}", _ProtectedResourceMetadata()) for path in ("", *MCP_PATHS)),
        ],
        middleware=[
            Middleware(Observed),
            Middleware(CrossOrigin),
        ],
        lifespan=lifespan,
    )
    # All other paths, unchanged: a mount would cut a path at a line break.
    application.router.redirect_slashes = False
    # Above Django's limits, whose answers are better but need the whole body on disk.
    largest = settings.CATALOGUE.max_request_bytes + 1024 * 1024
    application.router.default = cast(
        ASGIApp, ThreadHandler(largest_body=largest, is_known=is_known, doorkeeper=doorkeeper)
    )
    return application


application = build_application()
