"""The server of `tests.engines.mcp_server`, as a process."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectors.testing import free_port
from tests.processes import _wait_until_it_answers, guarded

KEY = "key-of-many-tools-0123456789"


@dataclass
class ManyToolsServer:
    """One that runs, and what it noted."""

    folder: Path
    url: str = ""
    pid: int = 0

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    def events(self) -> list[dict[str, Any]]:
        if not self.journal.exists():
            return []
        return [json.loads(line) for line in self.journal.read_text(encoding="utf-8").splitlines()]

    def count(self, event: str, tool: str) -> int:
        return sum(noted["event"] == event and noted["tool"] == tool for noted in self.events())


def command(journal: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "tests.engines.mcp_server", f"--journal={journal}", *options]


@contextmanager
def running_many_tools(
    folder: Path, *, era: str = "both", port: int = 0, path: str = "/mcp"
) -> Iterator[ManyToolsServer]:
    """Over HTTP, for the length of the block; again at the same port, if one is given."""
    folder.mkdir(exist_ok=True)
    port = port or free_port()
    server = ManyToolsServer(folder, url=f"http://127.0.0.1:{port}{path}")
    log = folder / "server.log"
    line = command(server.journal, f"--port={port}", f"--era={era}", f"--path={path}")
    with guarded(line, log=log, environment={"MANY_TOOLS_KEY": KEY}) as process:
        _wait_until_it_answers(process, f"http://127.0.0.1:{port}/healthz", log)
        server.pid = process.pid
        yield server
