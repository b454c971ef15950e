"""Questions about the result of a run: JMESPath expressions, answered by a process that holds one result. The
last one that was asked about stays for a while, so that further questions need not read it again.
docs/decisions/0030-asking-results.md has the reasons."""

import asyncio
import atexit
import contextlib
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import IO, Any, cast
from uuid import UUID

from django.db.models import ExpressionWrapper, F, TextField

from catalogue.database import run_in_database
from catalogue.naming import counted
from connectors.background import run_in_background_loop
from connectors.protocol import ABOUT_OUTPUT, ASIDE
from executions import result_reader
from executions.models import Execution, ExecutionPayload
from executions.reading import describe_cut
from executions.wakeups import waits

MAX_QUERY = 2_000  # Characters
MAX_ANSWER_BYTES = 1_700  # With what stands around it, less than 2 kB
SECONDS = 2.0  # Of computing, whatever else the machine does
ALL_SECONDS = 20.0  # With reading a result that is not held yet
WAIT_SECONDS = 30.0  # With the questions before it
IDLE_SECONDS = 60.0  # How long a result is held
MEMORY_BYTES = 1024**3
AT_ONCE = 2
PIECE = 500_000  # Characters
NARROWER = "Ask for less, such as one field, or `[:1000] |` before the rest."
Key = tuple[UUID, int | None]
_threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="asking")


class NotAnswered(Exception):
    """The question does not fit the result, or needs too much; the message says what to do."""


class NothingToAsk(NotAnswered):
    def __init__(self, execution: Execution) -> None:
        super().__init__(f"{execution.tool_name} has no result to ask; get_execution_status says why.")


class TooManyQuestions(NotAnswered):
    def __init__(self) -> None:
        super().__init__("Too many questions about results at present: ask again in a few seconds.")


async def ask_result(execution: Execution, query: str, *, block: int | None = None) -> dict[str, Any]:
    """Returns `answer`, or, if that is too large, `shape` and `note`, and what is `missing` of the result.
    `block`: asks this content block instead of the whole. Raises NotAnswered."""
    if len(query) > MAX_QUERY:
        raise NotAnswered(f"The query has {len(query):,} characters, more than {MAX_QUERY:,}.")
    if not execution.succeeded or execution.payload_pruned_at is not None:
        raise NothingToAsk(execution)
    question = _threads.submit(_ask, execution, query, block)
    try:
        async with waits.at_most(WAIT_SECONDS):
            found = await asyncio.wrap_future(question)
    except TimeoutError:
        raise TooManyQuestions from None
    if problem := found.pop("problem", ""):
        raise NotAnswered(f"The query was not answered: {problem}")
    if "shape" in found:
        found["note"] = _advise(found)
    return found


def _advise(found: dict[str, Any]) -> str:
    first = found.pop("first", 0)
    some = f'append " | [:{first}]" for {counted(first, "item")}, or ' if first else ""
    return (
        f"The answer is larger than {MAX_ANSWER_BYTES:,} bytes. This is its shape, by at most "
        f"{result_reader.LOOKED_AT} items of each array. To see more, {some}select less."
    )


def _ask(execution: Execution, query: str, block: int | None) -> dict[str, Any]:
    reader = _take_held((execution.pk, block))
    if reader is None:
        reader = _Reader((execution.pk, block), *run_in_background_loop(_read(execution)))
    try:
        return reader.ask(query)
    finally:
        reader.hold()


async def _read(execution: Execution) -> tuple[list[str], str]:
    return await run_in_database(_read_columns, execution)


def _read_columns(execution: Execution) -> tuple[list[str], str]:
    """Returns output and content as they are stored, as parsing them would hold up all other callers, and a
    sentence about what is missing of them. Raises NothingToAsk."""
    own = ExecutionPayload.objects.filter(pk=execution.pk)
    shared = ExecutionPayload.objects.filter(execution__answered_from_cache=execution.pk)
    shares, cut = own.values_list("shares_output", "cut").first() or (False, [])
    stored = [ExpressionWrapper(F(name), output_field=TextField()) for name in ("output", "content")]
    columns = (shared if shares else own).values_list(*stored).first() or ()
    if not any(columns):
        raise NothingToAsk(execution)
    return [column or "null" for column in columns], describe_cut(cut)


class _Reader:
    """A process that holds a result, for one thread at a time."""

    def __init__(self, key: Key, columns: list[str], missing: str) -> None:
        self.key, self._missing = key, missing
        self.idle = Timer(IDLE_SECONDS, self._let_go)
        self._process = subprocess.Popen(
            # Its folder has modules with the names of Python's own, hence -P.
            [sys.executable, "-P", result_reader.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # The signal that ends a server from its terminal is not for it
        )
        told = {"block": key[1], "notes": [ABOUT_OUTPUT, ASIDE]}
        bounds = {"memory": MEMORY_BYTES, "seconds": SECONDS, "most": MAX_ANSWER_BYTES}
        self._unsent = [json.dumps(told | bounds), *columns]

    def ask(self, query: str) -> dict[str, Any]:
        guard = Timer(ALL_SECONDS, self.kill)
        guard.start()
        _working.add(self)
        try:
            line = self._exchange(json.dumps(query))
        finally:
            _working.discard(self)
            guard.cancel()
        if line.endswith(b"\n"):
            found: dict[str, Any] = json.loads(line)
            return found | ({"missing": self._missing} if self._missing else {})
        if self._process.wait() == -signal.SIGPROF:
            return {"problem": f"it took longer than {SECONDS:g} s. {NARROWER}"}
        return {"problem": "its process ended before it had an answer. Ask again, or for less."}

    def _exchange(self, question: str) -> bytes:
        """Returns an incomplete line if the process has ended."""
        target, source = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        lines, self._unsent = [*self._unsent, question], []
        try:
            for line in lines:
                # A piece at a time, as encoding holds up other threads.
                for start in range(0, len(line), PIECE):
                    target.write(line[start : start + PIECE].replace("\n", " ").encode())
                target.write(b"\n")
            target.flush()
        except OSError:
            return b""
        return source.readline()

    def hold(self) -> None:
        """For further questions, in place of the one that is held."""
        _end_held()
        if self.is_alive:
            self.idle = Timer(IDLE_SECONDS, self._let_go)
            self.idle.daemon = True
            self.idle.start()
            _held.append(self)
        else:
            self.end()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _let_go(self) -> None:
        with contextlib.suppress(ValueError):  # A thread has just taken it
            _held.remove(self)
            self.end()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self.idle.cancel()
        with contextlib.suppress(OSError), self._process:  # It may not have read all
            self.kill()


# The last that has answered. A thread takes it out, and `pop` and `remove` let only one do so.
_held: list[_Reader] = []
_working: set[_Reader] = set()


def _take_held(key: Key) -> _Reader | None:
    try:
        reader = _held.pop()
    except IndexError:
        return None
    reader.idle.cancel()
    if reader.key == key and reader.is_alive:
        return reader
    reader.end()
    return None


def _end_held() -> None:
    with contextlib.suppress(IndexError):
        while True:
            _held.pop().end()


@atexit.register
def end_readers() -> None:
    """Also those that work, whose threads would delay the end of this process."""
    for reader in [*_working]:
        reader.kill()
    _end_held()
