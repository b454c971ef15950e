"""A line to an engine that dies in the middle of an answer, and what becomes of its questions meanwhile."""

import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import httpx2

from connectors.testing import free_port
from tests.e2e.product import Rest, wait_until

PATIENCE_SECONDS = 140.0


@dataclass
class Line:
    """Hands on what comes to its port, and is closed while the engine is away."""

    engine: int
    kill_engine: Callable[[], object]
    start_engine: Callable[[], object]
    port: int = field(default_factory=free_port)
    lost: bytes = b""
    """A request with these bytes never reaches the engine."""
    last: bytes = b""
    """The reply to a request with these bytes, which comes after the lost one, is lost: the engine dies."""
    has_lost: Event = field(default_factory=Event)
    dies: Event = field(default_factory=Event)
    is_dead: Event = field(default_factory=Event)
    _listener: socket.socket | None = None

    def start(self) -> None:
        self.start_engine()
        self.open()

    def kill(self) -> None:
        self.close()
        self.kill_engine()
        self.is_dead.set()

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def close(self) -> None:
        if self._listener is not None:
            # Ends `accept` too.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                Thread(target=self._hand_on, args=[client], daemon=True).start()

    def _hand_on(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.engine)) as engine:
            doomed = Event()
            Thread(target=self._hand_back, args=[engine, client, doomed], daemon=True).start()
            while sent := client.recv(1_000_000):
                if self.lost and self.lost in sent:
                    self.has_lost.set()
                    self.is_dead.wait(PATIENCE_SECONDS)
                    return
                if self.last and self.last in sent:
                    self.has_lost.wait(PATIENCE_SECONDS)
                    doomed.set()
                engine.sendall(sent)

    def _hand_back(self, engine: socket.socket, client: socket.socket, doomed: Event) -> None:
        with suppress(OSError):
            while told := engine.recv(1_000_000):
                if doomed.is_set():
                    self.dies.set()
                    self.is_dead.wait(PATIENCE_SECONDS)
                    break
                client.sendall(told)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def asked_of(rest: Rest, execution: str) -> dict[str, Any]:
    """The only question of a run that goes on, once it asks."""

    def look() -> Any:
        return rest.execution(execution)["questions"]

    (question,) = wait_until(look, PATIENCE_SECONDS, lambda: str(rest.execution(execution)))
    found: dict[str, Any] = question
    return found


def answer(rest: Rest, execution: str, content: dict[str, Any]) -> int:
    """Returns the status."""
    body = {"question": asked_of(rest, execution)["question"], "content": content}
    try:
        rest.post(f"/executions/{execution}/answer/", **body)
    except httpx2.HTTPStatusError as error:
        return error.response.status_code
    return 200


def kinds_of(rest: Rest, execution: str) -> list[str]:
    return [event["kind"] for event in rest.execution(execution)["events"]]


def survive(
    rest: Rest, line: Line, executions: Sequence[str], content: dict[str, Any], mark: Callable[[str], bytes]
) -> list[dict[str, Any]]:
    """Kills the engine with an answer that has arrived, perhaps one on its way, and one given while it is
    away, in this order. `mark`: bytes of the request with an execution's answer. Returns the executions as
    they have ended: each has asked once and was answered once."""
    arrived, *lost, later = executions
    for execution in executions:
        asked_of(rest, execution)
    line.last, line.lost = mark(arrived), b"".join(map(mark, lost))
    if not lost:
        line.has_lost.set()
    assert [answer(rest, execution, content) for execution in (arrived, *lost)] == [200] * (1 + len(lost))
    assert line.dies.wait(PATIENCE_SECONDS)
    line.kill()

    with ThreadPoolExecutor() as doors:
        assert sorted(doors.map(lambda _: answer(rest, later, content), range(2))) == [200, 409]
    wait_until(lambda: "answer_failed" in kinds_of(rest, later), PATIENCE_SECONDS)
    for execution in executions:
        seen = rest.execution(execution)
        assert (seen["state"], [bool(one["answered_by"]) for one in seen["questions"]]) == ("running", [True])

    line.last = line.lost = b""
    line.start()
    ended = [_end_of(rest, execution) for execution in executions]
    assert "answer_missed" not in kinds_of(rest, arrived)
    return ended


def _end_of(rest: Rest, execution: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        seen = rest.execution(execution)
        return seen if seen["state"] == "completed" else None

    ended: dict[str, Any] = wait_until(look, PATIENCE_SECONDS, lambda: str(rest.execution(execution)))
    kinds = Counter(event["kind"] for event in ended["events"])
    assert (kinds["asked"], kinds["answered"], kinds["answer_refused"]) == (1, 1, 0), ended["events"]
    return ended
