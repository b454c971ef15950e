"""Puts the engine together as an ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from examples.engine.auth import ApiKeyGate
from examples.engine.endpoints import RunEndpoints, healthz, list_workflows
from examples.engine.responses import broken, refused
from examples.engine.runner import Runner
from examples.engine.store import Store

WORKFLOWS_PATH = "/api/v1/service/workflows"
RUN_PATH = WORKFLOWS_PATH + "/{workflow_id}/runs/{run_id}"


def build_app(database: Path, api_key: str, honours_keys: bool) -> Starlette:
    store = Store(database)
    runner = Runner(store, honours_keys)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        runner.resume()
        yield
        await runner.close()
        store.close()

    app = Starlette(
        routes=build_routes(RunEndpoints(store, runner)),
        middleware=[Middleware(ApiKeyGate, api_key=api_key)],
        exception_handlers={HTTPException: refused, Exception: broken},
        lifespan=lifespan,
    )
    # A redirect has no JSON body, and every answer of this API has one.
    app.router.redirect_slashes = False
    return app


def build_routes(runs: RunEndpoints) -> list[Route]:
    return [
        Route("/healthz", healthz),
        Route("/runs", runs.list_runs),
        Route(WORKFLOWS_PATH, list_workflows),
        Route(WORKFLOWS_PATH + "/{workflow_id}/start", runs.start, methods=["POST"]),
        Route(RUN_PATH + "/status", runs.status),
        Route(RUN_PATH + "/cancel", runs.cancel, methods=["POST"]),
    ]
