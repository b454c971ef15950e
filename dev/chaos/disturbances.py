"""Everything that goes wrong, by plan."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from dev.chaos.deployment import Deployment
from dev.chaos.plan import Kill, Plan
from dev.chaos.stacks import Restart

WATCH_SECONDS = 0.5


@dataclass
class Disturbances:
    """Carries them out, and keeps what was done for the report."""

    deployment: Deployment
    plan: Plan
    restart: Restart | None = None
    """How the database is restarted in the middle of the load, if it is."""
    flush: bool = False
    """Whether the broker loses all messages, twice."""
    kills: Counter[str] = field(default_factory=Counter)
    done: list[str] = field(default_factory=list)
    ended_by_themselves: Counter[str] = field(default_factory=Counter)

    async def carry_out(self) -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as together:
            for kill in self.plan.kills:
                together.create_task(self._after(began + kill.at, kill))
            together.create_task(self._engines_away(began + self.plan.outage_at))
            if self.flush:
                for at in self.plan.broker_flushed_at:
                    together.create_task(self._at(began + at, self._flush_broker))
            if self.restart is not None:
                together.create_task(
                    self._at(began + self.plan.database_restarted_at, self._restart_database)
                )

    async def watch(self) -> None:
        """Start again what ends by itself, for as long as this is not cancelled."""
        while True:
            for name, program in self.deployment.programs.items():
                if (code := await program.keep_up()) is not None:
                    self.ended_by_themselves[f"{name} (exit code {code})"] += 1
            await asyncio.sleep(WATCH_SECONDS)

    async def _after(self, moment: float, kill: Kill) -> None:
        await _sleep_until(moment)
        await self.deployment.programs[kill.program].kill(pause=kill.pause)
        self.kills[kill.program] += 1

    async def _engines_away(self, moment: float) -> None:
        await _sleep_until(moment)
        seconds = self.plan.outage_seconds
        engines = [self.deployment.programs[name] for name in self.plan.engines]
        await asyncio.gather(*(engine.be_away(seconds=seconds) for engine in engines))
        self.done.append(
            f"all {len(engines)} engines hung for {seconds / 2:g} s, then were dead for {seconds / 2:g} s"
        )

    async def _at(self, moment: float, disturb: Callable[[], str]) -> None:
        await _sleep_until(moment)
        self.done.append(await asyncio.to_thread(disturb))

    def _flush_broker(self) -> str:
        deployment = self.deployment
        deployment.stack.flush_broker(data_dir=deployment.data_dir, secret_key=deployment.secret_key)
        return "the broker lost all messages"

    def _restart_database(self) -> str:
        assert self.restart is not None, "only called where it is wanted"
        return f"the database: {self.deployment.stack.restart_database(self.restart)}"


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
