"""The product's server behind pipes of this process, framed as on standard input and output.

Starting `manage.py mcp_stdio` takes 2 s of CPU; `test_stdio_process.py` does it where a process matters.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
from mcp.server.stdio import stdio_server

from mcp_bridge.access import Access
from mcp_bridge.server import CatalogueServer

File = anyio.AsyncFile[str]


class _Requests:
    """The client's end of standard input; what it still sends while it leaves is dropped."""

    def __init__(self, pipe: int) -> None:
        self._file = os.fdopen(pipe, "wb", buffering=0)
        self._writing = anyio.Lock()

    async def write(self, text: str) -> None:
        async with self._writing:
            if not self._file.closed:
                await anyio.to_thread.run_sync(self._file.write, text.encode())

    async def flush(self) -> None:
        """Nothing is buffered."""

    async def close(self) -> None:
        async with self._writing:
            self._file.close()


@asynccontextmanager
async def over_pipes(*, toolset: str | None = None) -> AsyncIterator[Any]:
    """A transport for `mcp.Client`."""
    from_client, to_server = os.pipe()
    from_server, to_client = os.pipe()
    requests = _Requests(to_server)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve, from_client, to_client, toolset)
        async with (
            await anyio.open_file(from_server, encoding="utf-8") as answers,
            # The framing is the same from either end.
            stdio_server(answers, cast(File, requests)) as streams,
        ):
            try:
                yield streams
            finally:
                await requests.close()
                await streams[1].aclose()


async def _serve(stdin: int, stdout: int, toolset: str | None) -> None:
    async with (
        await anyio.open_file(stdin, encoding="utf-8") as requests,
        await anyio.open_file(stdout, "w", encoding="utf-8") as answers,
        stdio_server(requests, answers) as streams,
    ):
        server = CatalogueServer(local_access=Access.of_local_user(toolset=toolset))
        await server.run(*streams, server.create_initialization_options())
