"""The command on standard input and output, driven by hand: line by line, as it stands on the pipes."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp.client.stdio import StdioServerParameters

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
END_SECONDS = 30
WATCHDOG_SECONDS = 100
"""Shorter than pytest's own limit, and long enough for a machine that runs all suites at once."""


@dataclass
class Piped:
    """A process of the command, and every line that it has written to standard output."""

    process: "subprocess.Popen[bytes]"
    log: Path
    """Its standard error."""
    lines: list[bytes] = field(default_factory=list)

    def send(self, method: str, *, number: int = 1, **params: Any) -> None:
        self.write({"jsonrpc": "2.0", "id": number, "method": method, "params": {"_meta": META, **params}})

    def write(self, message: Any) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, *, number: int = 1, **params: Any) -> dict[str, Any]:
        """The answer to a request of the present revision."""
        self.send(method, number=number, **params)
        return self.answer_to(number)

    def answer_to(self, number: int) -> dict[str, Any]:
        while True:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, f"it ended without an answer: {self.told}"
            self.lines.append(line)
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number:
                return message

    @property
    def told(self) -> str:
        """Standard error so far."""
        return self.log.read_text(encoding="utf-8")

    def end(self) -> int:
        """Close standard input, read what is left, and wait for the exit code."""
        rest, _ = self.process.communicate(timeout=END_SECONDS)
        self.lines += rest.splitlines(keepends=True)
        return self.process.returncode


@contextmanager
def piped(server: StdioServerParameters, log: Path, **environment: str) -> Iterator[Piped]:
    """Run the command for the length of the block."""
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [server.command, *server.args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=(server.env or {}) | environment,
            cwd=server.cwd,
        )
    # A test that waits for a line which never comes fails here, and not by the suite's own limit.
    watchdog = threading.Timer(WATCHDOG_SECONDS, process.kill)
    watchdog.start()
    try:
        yield Piped(process, log)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(BrokenPipeError):
                pipe.close()
