"""An ASGI application on a port of its own, in a thread of the tests' process."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from config.web_server import configure_server

START_SECONDS = 20


class _Hurried:
    """Asyncio for uvicorn's server, which sleeps for tenths of a second until it sees that it is to end."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = _Hurried()  # type: ignore[assignment]


@contextmanager
def serving(application: ASGIApp, **options: Any) -> Iterator[str]:
    """Its address, for the length of the block; as `manage.py serve` has it. The options are uvicorn's."""
    server = uvicorn.Server(configure_server(application, host="127.0.0.1", port=0, **options))
    started = threading.Event()
    original_startup = server.startup

    async def startup(sockets: Any = None) -> None:
        await original_startup(sockets)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(START_SECONDS), "the server did not start"
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(START_SECONDS)
