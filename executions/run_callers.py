"""Sends a run's questions (such as elicitation), log messages and progress to its caller during its start.

The process that awaits the start writes the question and looks for the answers every second; any process
takes them. A question does not outlive its start: without that process, nothing can use the answers.

Log messages and progress go to the request of this process that waits for the start. They are not stored,
but for the latest progress: those that arrive while no request waits, or that a client reads too slowly, are
lost.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from django.db import Error as DatabaseError
from django.db import transaction
from loguru import logger

from connectors.protocol import LogMessage, Progress
from executions.models import Execution, InputRequest, State
from executions.questions import find_answerers, take_responses
from executions.wakeups import wake

Requests = dict[str, dict[str, Any]]  # MCP's requests to a client, or their results, by key
ANSWERS = "answers"  # In the client's description: which of MCP's capabilities for questions it has
CARDS = "cards"  # Likewise: true if a card shows the run; it then asks what the client itself cannot
OF_CARDS: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
WORDS = {"sampling/createMessage": "an answer of its model", "roots/list": "its folders"}
MAX_UNSENT = 100
_listeners: dict[uuid.UUID, "RunListener"] = {}
News = LogMessage | Progress


class Asker:
    """Asks for one start, one question after the other. `changed` is set when there is something to do."""

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed, self._turn = changed, asyncio.Lock()
        self._requests: Requests | None = None
        self._answers: asyncio.Future[Requests] | None = None
        self._taken: Requests | None = None
        self.is_open = False  # Whether the database has a question

    async def ask(self, requests: Requests) -> Requests:
        async with self._turn:
            self._requests = requests
            self._answers = asyncio.get_running_loop().create_future()
            self._changed.set()
            try:
                return await self._answers
            finally:
                self._requests = self._answers = None
                self._changed.set()

    def look(self, execution: Execution) -> bool:
        """Call it in a database thread. Returns whether a question was opened."""
        if self._requests is None:
            if self.is_open:
                withdraw(execution)
                self.is_open = False
        elif not self.is_open:
            self.is_open = _open(execution, self._requests)
            return self.is_open
        elif (taken := _take(execution)) is not None:
            # The start takes the answers later; until then it asks nothing.
            self._taken, self._requests, self.is_open = taken, None, False
        return False

    def deliver(self) -> None:
        """Call it in the event loop, after `look`."""
        taken, self._taken = self._taken, None
        if taken is not None and self._answers is not None and not self._answers.done():
            self._answers.set_result(taken)


def open_question(execution: Execution) -> Requests:
    """Returns what the client has yet to answer; empty if the run asks nothing, or only approvers."""
    if not execution.is_asking or (execution.is_paused and find_answerers(execution)):
        return {}
    asked = InputRequest.objects.filter(execution=execution.pk).first()
    if asked is None:
        return {}
    return {key: request for key, request in asked.requests.items() if key not in asked.responses}


def answer(execution: Execution, results: Mapping[str, Any]) -> list[str]:
    """Record the client's answers. Returns why some were not taken; during a start, repeated ones, and those
    to no question, are ignored."""
    if execution.state == State.RUNNING:
        return take_responses(execution, results, by=execution.caller_name or execution.caller)
    with transaction.atomic():
        waiting = InputRequest.objects.select_for_update().filter(execution=execution.pk)
        if (asked := waiting.first()) is None or asked.pk != execution.input_request:
            return []
        asked.responses = {key: results[key] for key in asked.requests if key in results} | asked.responses
        asked.save(update_fields=["responses"])
        if asked.is_answered:
            said = ", ".join(str(result.get("action", "answered")) for result in asked.responses.values())
            execution.stop_asking(("answered", f"The client answered: {said}."))
        transaction.on_commit(lambda: wake(execution.pk))
    return []


def withdraw(execution: Execution) -> None:
    InputRequest.objects.filter(execution=execution.pk).delete()
    execution.stop_asking()


def _open(execution: Execution, requests: Requests) -> bool:
    with transaction.atomic():
        InputRequest.objects.filter(execution=execution.pk).delete()
        asked = InputRequest.objects.create(execution=execution, requests=requests)
        if not execution.ask_caller(asked, f"Waits for input: {_words_of(requests)}"):
            asked.delete()
            return False
    return True


def _words_of(requests: Requests) -> str:
    words = (
        str(request["params"].get("message") or "")
        if request["method"] == "elicitation/create"
        else f"the client is asked for {WORDS.get(request['method'], request['method'])}"
        for request in requests.values()
    )
    return "; ".join(filter(None, words)) or "the tool gives no details"


def _take(execution: Execution) -> Requests | None:
    """Remove and return the answers; None while some are missing."""
    asked = InputRequest.objects.filter(execution=execution.pk).first()
    if asked is None or not asked.is_answered:
        return None
    asked.delete()
    execution.input_request, execution.progress_message = None, ""
    return {key: asked.responses[key] for key in asked.requests}


# Log messages and progress


class RunListener:
    """The news for one request, in order of arrival. Belongs to the event loop that created it."""

    def __init__(self, find_level: Callable[[], Awaitable[str]] | None) -> None:
        """`find_level`: None if its client wants no log messages."""
        self._find_level = find_level
        self._loop = asyncio.get_running_loop()
        self._unsent: asyncio.Queue[News] = asyncio.Queue(MAX_UNSENT)
        self._level: str | None = None

    async def level(self) -> str:
        """Returns the lowest level that its client requested; empty if none."""
        if self._level is None:
            try:
                self._level = "" if self._find_level is None else await self._find_level()
            except DatabaseError as error:
                logger.warning("The level of log messages cannot be read: {}", error)
                self._level = ""
        return self._level

    def put(self, news: News) -> None:
        """May be called from any thread."""
        # The loop may be closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._keep_news, news)

    async def send_each(self, send: Callable[[News], Awaitable[None]]) -> None:
        """Runs until it is cancelled."""
        while True:
            news = await self._unsent.get()
            try:
                await send(news)
            except Exception as error:  # noqa: BLE001 - no news is worth a call
                logger.debug("News of a run did not reach its client: {!r}", error)
            finally:
                self._unsent.task_done()

    async def drain(self) -> None:
        """Wait until all news so far are sent."""
        # News of this loop's own calls are on their way to the queue.
        await asyncio.sleep(0)
        await self._unsent.join()

    def _keep_news(self, news: News) -> None:
        with suppress(asyncio.QueueFull):
            self._unsent.put_nowait(news)


@contextmanager
def listening(execution_id: uuid.UUID, listener: RunListener) -> Iterator[None]:
    """The latest request for an execution gets the news."""
    _listeners[execution_id] = listener
    try:
        yield
    finally:
        if _listeners.get(execution_id) is listener:
            del _listeners[execution_id]


async def wanted_level(execution_id: uuid.UUID) -> str:
    """Returns the level at a start; empty if no request of this process waits for it."""
    listener = _listeners.get(execution_id)
    return "" if listener is None else await listener.level()


def pass_on(execution_id: uuid.UUID, news: News) -> None:
    if (listener := _listeners.get(execution_id)) is not None:
        listener.put(news)
