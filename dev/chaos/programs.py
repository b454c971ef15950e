"""One program of a deployment: started, killed, frozen and started again."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx2

ROOT = Path(__file__).resolve().parents[2]
TETHERED = ROOT / "deploy" / "tethered.py"
START_SECONDS = 120.0
PROBE_SECONDS = 0.05
AWAKE_SECONDS = 0.5


class Program:
    """A Python program with its log; it ends with the process that started it."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        variables: Mapping[str, str],
        folder: Path,
        answers_at: str = "",
    ) -> None:
        self.name = name
        self.root = ROOT  # The code that the next start runs
        self.log = folder / f"{name}.log"
        self._command = [sys.executable, str(TETHERED), *arguments]
        self._variables = dict(variables)
        self._answers_at = answers_at
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = asyncio.Lock()

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.root,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def stop(self) -> None:
        """At once, whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def wait_until_up(self) -> None:
        """Wait until it answers, or runs if it answers no requests. Raises RuntimeError."""
        deadline = time.monotonic() + START_SECONDS
        async with httpx2.AsyncClient(timeout=5, trust_env=False) as client:
            while time.monotonic() < deadline and self.exit_code is None:
                if not self._answers_at or await _answers(client, self._answers_at):
                    return
                await asyncio.sleep(PROBE_SECONDS)
        raise RuntimeError(f"{self.name} is not up (exit code {self.exit_code}): {self.last_words()}")

    async def kill(self, *, pause: float) -> None:
        """SIGKILL, and another one after `pause` seconds."""
        async with self._turn:
            self.stop()
            await asyncio.sleep(pause)
            self.start()

    async def replace(self, root: Path, *, seconds: float) -> int:
        """Let it end by SIGTERM and start another version. Its exit code. Raises TimeoutExpired."""
        assert self._process is not None, "only what runs can be replaced"
        async with self._turn:
            self._signal(signal.SIGTERM)
            code = await asyncio.to_thread(self._process.wait, seconds)
            self.root = root
            self.start()
        await self.wait_until_up()
        return code

    async def interrupt(self, *, seconds: float) -> int | None:
        """End it by SIGINT. Its exit code; None if it still runs after so many seconds."""
        assert self._process is not None, "only what runs can be interrupted"
        self._signal(signal.SIGINT)
        try:
            return await asyncio.to_thread(self._process.wait, seconds)
        except subprocess.TimeoutExpired:
            return None

    async def be_away(self, *, seconds: float) -> None:
        """Hang for the first half of the time, wake up for a moment, be dead for the second half.

        Requests that arrive meanwhile run when it resumes, and no caller waits for their answers any more.
        """
        async with self._turn:
            self._signal(signal.SIGSTOP)
            await asyncio.sleep(seconds / 2)
            self._signal(signal.SIGCONT)
            await asyncio.sleep(AWAKE_SECONDS)
            self.stop()
            await asyncio.sleep(seconds / 2)
            self.start()

    async def keep_up(self) -> int | None:
        """Start it again if it ended by itself, as a supervisor would; the exit code that it had then."""
        if self._turn.locked() or (code := self.exit_code) is None:
            return None
        async with self._turn:
            self.start()
        return code

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)


async def _answers(client: httpx2.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).is_success
    except httpx2.TransportError:
        return False
