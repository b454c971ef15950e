import os
import signal
from argparse import ArgumentParser
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from catalogue.database import prepare_embedded_database, require_database
from catalogue.exposure import current_catalogue
from catalogue.management.base import CatalogueCommand
from connectors.formats.json import mend
from executions.local_worker import LocalWorker
from identity.management import add_toolset_option, local_access
from identity.tokens import Access
from mcp_bridge.request_meta import id_in
from mcp_bridge.server import CatalogueServer


class Command(CatalogueCommand):
    help = (
        "Serve MCP on standard input and output as the local user. Logs go to standard error. "
        "If no worker is running, the command lists the engines and follows the runs itself."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_toolset_option(parser, what="serve this toolset, as /mcp/<slug> does")

    def handle(self, *args: Any, **options: Any) -> None:
        # Errors should appear now, not at the first request.
        require_database()
        prepare_embedded_database()
        current_catalogue()
        access = local_access(options)
        worker = LocalWorker()
        worker.begin()
        anyio.run(partial(serve_stdio, access, worker=worker))


async def serve_stdio(access: Access, *, worker: LocalWorker | None = None) -> None:
    """Serve until the client closes standard input or disconnects; then end `worker`. At a signal, clean up
    and let the signal take effect instead of returning."""
    try:
        async with stdio_server() as (read_stream, write_stream):
            server = CatalogueServer(local_access=access, worker=worker)
            received: list[signal.Signals] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_note_signal, received, tasks.cancel_scope)
                await serve_lines(server, read_stream, write_stream)
                tasks.cancel_scope.cancel()
            if received:
                # The thread that reads standard input cannot be ended and would keep the process alive.
                signal.signal(received[0], signal.SIG_DFL)
                os.kill(os.getpid(), received[0])
    except* BrokenPipeError:
        """The client has disconnected."""
    finally:
        # Buffered output of libraries must not reach the client.
        with suppress(OSError):
            os.dup2(2, 1)


async def serve_lines(server: CatalogueServer, lines: Any, answers: ObjectSendStream[SessionMessage]) -> None:
    """Serve until `lines` end."""
    await server.run(_Messages(lines, answers), answers, server.create_initialization_options())


class _Messages(ObjectReceiveStream[SessionMessage | Exception]):
    """Answers lines that are no messages. The SDK drops them, and their client would wait."""

    def __init__(self, lines: Any, answers: ObjectSendStream[SessionMessage]) -> None:
        self._lines, self._answers = lines, answers

    @property
    def last_context(self) -> Any:
        return getattr(self._lines, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        item: SessionMessage | Exception = await self._lines.receive()
        while isinstance(item, ValidationError):
            try:
                # A line that the SDK could not read may be a message all the same.
                problem = item.errors(include_url=False)[0]
                if problem["type"] != "json_invalid":
                    raise item
                mended = mend(str(problem["input"]).encode(), "\ufffd").decode()
                item = SessionMessage(jsonrpc_message_adapter.validate_json(mended, by_name=False))
            except ValidationError as error:
                if (refusal := _refuse(error)) is not None:
                    await self._answers.send(SessionMessage(refusal))
                item = await self._lines.receive()
        return item

    async def aclose(self) -> None:
        await self._lines.aclose()


def _refuse(error: ValidationError) -> JSONRPCError | None:
    """None for empty lines, and for malformed responses: their ids are those of our requests."""
    problems = error.errors(include_url=False)
    if problems[0]["type"] == "json_invalid":
        line = str(problems[0]["input"])
        if not line.strip():
            return None
        why = f"This line cannot be read as JSON: {problems[0]['ctx']['error']}."
        problem = ErrorData(code=PARSE_ERROR, message=f"{why} Each message must be one line of JSON.")
        return JSONRPCError(jsonrpc="2.0", id=id_in(line.encode()), error=problem)
    sent: dict[str, Any] = next((one["input"] for one in problems if isinstance(one["input"], dict)), {})
    if sent.keys() & {"result", "error"}:
        return None
    identity = sent.get("id")
    known = identity if isinstance(identity, int | str) and not isinstance(identity, bool) else None
    problem = ErrorData(
        code=INVALID_REQUEST,
        message='This is not a JSON-RPC 2.0 request. It needs "jsonrpc": "2.0" and a "method".',
    )
    return JSONRPCError(jsonrpc="2.0", id=known, error=problem)


async def _note_signal(received: list[signal.Signals], scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            received.append(number)
            scope.cancel()
