"""The product's server behind pipes of this process, framed as on standard input and output.

Starting `manage.py mcp_stdio` takes 2 s of CPU; `test_stdio_process.py` does it where a process matters.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from identity.tokens import Access
from mcp_bridge.management.commands.mcp_stdio import serve_lines
from mcp_bridge.server import CatalogueServer


@asynccontextmanager
async def over_pipes(*, toolset: str | None = None) -> AsyncIterator[Any]:
    """A transport for `mcp.Client`, which ends the server as clients do: by the end of its input."""
    from_client, to_server = os.pipe()
    from_server, to_client = os.pipe()
    to_reader, from_reader = anyio.create_memory_object_stream[SessionMessage | Exception](100)
    to_writer, from_writer = anyio.create_memory_object_stream[SessionMessage](100)
    async with anyio.create_task_group() as tasks, to_writer, from_reader:
        tasks.start_soon(_serve, from_client, to_client, toolset)
        tasks.start_soon(_read, from_server, to_reader)
        tasks.start_soon(_write, to_server, from_writer)
        yield from_reader, to_writer


async def _read(pipe: int, answers: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    async with answers, await anyio.open_file(pipe, "rb") as lines:
        async for line in lines:
            try:
                await answers.send(SessionMessage(jsonrpc_message_adapter.validate_json(line)))
            except anyio.BrokenResourceError:
                """The client hears no more; reading on lets the server come to its end."""


async def _write(pipe: int, requests: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with requests, await anyio.open_file(pipe, "wb", buffering=0) as stdin:
        async for request in requests:
            text = request.message.model_dump_json(by_alias=True, exclude_unset=True)
            await stdin.write(text.encode() + b"\n")


async def _serve(stdin: int, stdout: int, toolset: str | None) -> None:
    async with (
        await anyio.open_file(stdin, encoding="utf-8", errors="replace") as requests,
        await anyio.open_file(stdout, "w", encoding="utf-8") as answers,
        stdio_server(requests, answers) as streams,
    ):
        await serve_lines(CatalogueServer(local_access=Access.of_local_user(toolset=toolset)), *streams)


PING = b'{"jsonrpc": "2.0", "id": "the last", "method": "ping"}'


async def answers_to(line: bytes) -> list[Any]:
    """What the server writes before it answers the next request."""
    from_client, to_server = os.pipe()
    from_server, to_client = os.pipe()
    found: list[Any] = []
    async with anyio.create_task_group() as tasks, await anyio.open_file(from_server, "rb") as answers:
        tasks.start_soon(_serve, from_client, to_client, None)
        async with await anyio.open_file(to_server, "wb", buffering=0) as stdin:
            await stdin.write(line + b"\n" + PING + b"\n")
            while (answer := json.loads(await answers.readline()))["id"] != "the last":
                found.append(answer)
    return found
