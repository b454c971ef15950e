"""The session with one server, shared by all calls; opened when needed, and again after it is lost."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Unpack

import anyio
from loguru import logger
from mcp.client import Transport
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

from connectors.definitions import RejectedDefinition
from connectors.errors import (
    ConnectorError,
    InvalidAnswer,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Unreachable,
    Unsupported,
    backoff_seconds,
)
from connectors.network.redaction import Redactor
from connectors.upstream_mcp.conversation import (
    Conversation,
    Era,
    RequestOptions,
    SessionLost,
    TransportFailures,
)
from connectors.upstream_mcp.run_callers import Questions
from telemetry.traces import begin_apart

CLOSING_SECONDS = 10.0
PING_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 300.0
REFUSED = 100  # Failures that lead to the longest pause
OpenTransport = Callable[[], Transport]
LONG_ENOUGH_SECONDS = 30.0
FREE_ATTEMPTS = 2


class McpSession:
    """Raises only ConnectorError. Make one per connector."""

    def __init__(
        self,
        open_transport: OpenTransport,
        *,
        failures: TransportFailures,
        redactor: Redactor,
        questions: Questions,
        request_seconds: float,
        holds_back: bool,
        explain: Callable[[], str] = str,
        on_listing_changed: Callable[[], None] = lambda: None,
        first_era: Era | None = None,
    ) -> None:
        """`first_era`: of a server that speaks it; else the newest that it speaks."""
        self._open_transport = open_transport
        self._failures = failures
        self._redactor = redactor
        self._questions = questions
        self._request_seconds = request_seconds
        self._on_listing_changed = on_listing_changed
        self._explain = explain
        self._backoff = Backoff(holds_back=holds_back)
        self._first_era = self._era = first_era
        self._current: _Owned | None = None
        self._retired: set[_Owned] = set()
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        silence: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> dict[str, Any]:
        """Like `Conversation.request`, repeated in a new conversation if the server lost the session."""
        silence = silence or self._request_seconds
        for is_last in (False, True):
            async with self._conversation() as owned:
                try:
                    return await owned.conversation.request(method, params, silence=silence, **options)
                except (Unreachable, OutcomeUnknown) as error:
                    if owned.task is not None and owned.conversation.ended.is_set():
                        await asyncio.wait({owned.task}, timeout=1.0)
                        error.message += self._explain()
                    raise
                except SessionLost:
                    self._era = self._first_era
                    self._retire(owned)
                    if is_last:
                        raise Unreachable(f"{method}: the server loses each session immediately.") from None
        raise AssertionError("the loop returns or raises")

    async def page(self, method: str, key: str, page: str = "") -> tuple[list[Any], str]:
        """The items of a page of a list, and the next page: its cursor, which may be empty, after an "=";
        empty on the last page."""
        answer = await self.request(method, {"cursor": page[1:]} if page else {})
        items, following = answer.get(key), answer.get("nextCursor")
        if not isinstance(items, list):
            raise InvalidAnswer(f"The server's answer to {method} has no array of {key}.")
        if following is not None and not isinstance(following, str):
            raise InvalidAnswer(f"The cursor in the server's answer to {method} is not a string.")
        if page == "=" and following == "":
            # Servers without pages that mean the end by it return the same page again.
            reason = f'{method} returns the cursor "" for the cursor "": only the page before is used'
            return [RejectedDefinition(position=0, id="", name="", reason=reason)], ""
        return items, "" if following is None else f"={following}"

    async def era(self) -> Era:
        async with self._conversation() as owned:
            return owned.conversation.era

    def watch(self) -> None:
        """Keep a conversation open from now on, for notifications of changes."""
        if self._watching is None:
            self._watching = begin_apart(self._watch())

    async def aclose(self) -> None:
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        self.retire()
        for owned in list(self._retired):
            await owned.close()

    async def _watch(self) -> None:
        """Reports a change after each reconnection, since notifications may have been missed."""
        in_a_row, has_listened = 0, False
        while True:
            try:
                async with self._conversation() as owned:
                    if has_listened:
                        self._on_listing_changed()
                    has_listened, in_a_row = True, 0
                    await _first_of(owned.conversation.listen(), owned.retired.wait())
            except (Rejected, Unsupported, NotFound, InvalidAnswer, Misconfigured) as error:
                logger.debug("An MCP server does not announce changes: {}", error.message)
                in_a_row = REFUSED
            except (ConnectorError, SessionLost):
                in_a_row += 1
            pause = backoff_seconds(in_a_row, first=FIRST_PAUSE_SECONDS, longest=MAX_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _conversation(self) -> AsyncGenerator["_Owned"]:
        """Raises Unreachable during a backoff."""
        owned = self._current
        if owned is not None and owned.is_doubtful and owned.ready.done() and not owned.is_over:
            if not await self._is_known(owned):
                self._retire(owned)
            owned = self._current
        if owned is None or owned.is_over:
            if self._closed:
                raise Unreachable("The connection to the MCP server was closed.")
            self._backoff.check()
            owned = self._current = _Owned()
            owned.task = asyncio.create_task(self._own(owned))
        owned.users += 1
        try:
            await asyncio.shield(owned.ready)
            yield owned
        finally:
            owned.users -= 1
            if owned in self._retired and not owned.users:
                owned.end.set()

    async def _is_known(self, owned: "_Owned") -> bool:
        """Whether the server knows the session, after a refusal that does not say so."""
        try:
            await owned.conversation.request("ping", silence=min(PING_SECONDS, self._request_seconds))
        except Unsupported:
            pass  # An answer nevertheless
        except (ConnectorError, SessionLost):
            return False
        owned.is_doubtful = False
        return True

    def doubt(self) -> None:
        """Before the next request, look whether the server still knows the session."""
        if self._current is not None:
            self._current.is_doubtful = True

    def retire(self) -> None:
        """Use another conversation for later requests; pending ones still get their answers."""
        if self._current is not None:
            self._retire(self._current)

    def _retire(self, owned: "_Owned") -> None:
        if self._current is owned:
            self._current = None
        owned.retired.set()
        if not owned.is_over:
            self._retired.add(owned)
            if not owned.users:
                owned.end.set()

    async def _own(self, owned: "_Owned") -> None:
        """Open and close the transport in one task, as the SDK requires."""
        began = time.monotonic()
        try:
            async with self._open_transport() as (read_stream, write_stream):
                conversation = Conversation(
                    JSONRPCDispatcher(read_stream, write_stream),
                    failures=self._failures,
                    redactor=self._redactor,
                    questions=self._questions,
                    on_listing_changed=self._on_listing_changed,
                )
                async with anyio.create_task_group() as group:
                    await group.start(conversation.run)
                    self._era = await conversation.agree(self._era, seconds=self._request_seconds)
                    owned.open(conversation)
                    await _first_of(owned.end.wait(), conversation.ended.wait())
                    group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - waiting callers get the error, whatever it is
            self._era = self._first_era
            owned.fail(self._reason(error))
        finally:
            owned.fail(Unreachable("The connection to the MCP server was closed."))
            self._retired.discard(owned)
            self._backoff.note(lasted=time.monotonic() - began)

    def _reason(self, error: Exception) -> ConnectorError:
        """The first ConnectorError of an exception group, or Unreachable."""
        causes = list(_leaves(error))
        for cause in causes:
            if isinstance(cause, ConnectorError):
                cause.message += self._explain()
                cause.args = (cause.message,)
                return cause
        if any(isinstance(cause, SessionLost) for cause in causes):
            return Unreachable("The MCP server refuses new sessions.")
        kinds = ", ".join(dict.fromkeys(type(cause).__name__ for cause in causes))
        reasons = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
        logger.debug("The connection to an MCP server failed: {}", self._redactor.text(reasons))
        return Unreachable(f"The connection to the MCP server failed ({kinds}).")


class _Owned:
    """A conversation and the task that opens and closes it."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self.end = asyncio.Event()
        self.retired = asyncio.Event()  # No further request goes there
        self.is_doubtful = False  # Whether the server may have lost the session
        self.users = 0
        self.task: asyncio.Task[None] | None = None
        self._conversation: Conversation | None = None

    @property
    def conversation(self) -> Conversation:
        assert self._conversation is not None, "used once it is ready"
        return self._conversation

    @property
    def is_over(self) -> bool:
        if self._conversation is not None and self._conversation.ended.is_set():
            return True
        return self.end.is_set() or (self.task is not None and self.task.done())

    def open(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.ready.set_result(None)

    def fail(self, error: ConnectorError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)

    async def close(self) -> None:
        self.end.set()
        if self.task is not None:
            await asyncio.wait({self.task}, timeout=CLOSING_SECONDS)
            self.task.cancel()


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _first_of(*awaited: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.create_task(one) for one in awaited]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in ended:
        task.result()


class Backoff:
    """Delays restarts of a program that ends early."""

    def __init__(self, *, holds_back: bool) -> None:
        self._holds_back = holds_back
        self._in_a_row = 0
        self._not_before = 0.0

    def check(self) -> None:
        if (left := self._not_before - time.monotonic()) > 0:
            raise Unreachable(
                f"The MCP server ended {self._in_a_row} times in a row; it is started again in {left:.1f} s.",
                retry_after=left,
            )

    def note(self, *, lasted: float) -> None:
        if not self._holds_back or lasted > LONG_ENOUGH_SECONDS:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        if self._in_a_row > FREE_ATTEMPTS:
            pause = backoff_seconds(self._in_a_row - FREE_ATTEMPTS - 1, first=0.5, longest=60.0)
            self._not_before = time.monotonic() + pause
