"""What is going to happen: the calls and the disturbances, drawn from the seed alone."""

import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

WEBS = ("web-1", "web-2")
WORKERS = ("worker-1", "worker-2")
BEAT = "beat"
KEYED, PLAIN, ASKED = "keyed", "plain", "asked"
"""Engines: one starts one run per idempotency key; one promises nothing; one starts as many as it is told
to, and can be asked which run it started for a key."""
ENGINES = (KEYED, PLAIN, ASKED)
MIN_OUTAGE_FOR_ALL_SECONDS = 10.0
"""An engine that is asked is believed only after a minute that it has no run: too long for a short test."""
CALLERS = ("alice", "bob", "charlie")
LEASE_AND_MORE = 26.0
"""Seconds after which a killed process holds nothing any more."""


class Door(StrEnum):
    MCP = "tools/call that waits for the result"
    REST = "REST without waiting"
    WAITING_REST = "REST that waits"


class Persistence(StrEnum):
    """What a client does when its connection breaks before it has an answer."""

    KEY = "repeats with its idempotency key"
    REPEAT = "repeats the same call"
    GIVE_UP = "gives up"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What one client wants. All times are seconds."""

    mark: str
    """Found in the arguments of this call only, so that the engine's runs can be distinguished."""
    at: float
    source: str
    workflow: str
    arguments: dict[str, Any] = field(repr=False)
    caller: str
    door: Door
    web: int
    """Which of the web processes it turns to first."""
    persistence: Persistence
    repeat_after: float
    hangs_up_after: float | None
    cancel_after: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    at: float
    program: str
    pause: float
    """Before it is started again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    calls: list[Call]
    kills: list[Kill]
    engines: tuple[str, ...]
    seconds: float
    """How long calls keep coming."""
    outage_at: float
    outage_seconds: float
    """All engines hang for the first half of it, and are not there for the second."""
    limit: int
    """Runs at a time of one source; the others wait in the queue."""

    @property
    def broker_flushed_at(self) -> tuple[float, ...]:
        return (0.35 * self.seconds, 0.7 * self.seconds)

    @property
    def database_restarted_at(self) -> float:
        return 0.55 * self.seconds


def draw_plan(*, seed: int, executions: int, kills: int, outage: float, longest: float) -> Plan:
    """The same arguments give the same plan. `longest`: seconds that a run takes at most."""
    seconds = 2 * outage + 3 * kills
    dice = random.Random(f"calls {seed}")
    engines = ENGINES if outage >= MIN_OUTAGE_FOR_ALL_SECONDS else (KEYED, PLAIN)
    calls = [_draw_call(dice, number, engines, seconds, longest) for number in range(executions)]
    dice = random.Random(f"disturbances {seed}")
    return Plan(
        calls=sorted(calls, key=lambda call: call.at),
        kills=_draw_kills(dice, kills, engines, seconds),
        engines=engines,
        seconds=seconds,
        outage_at=dice.uniform(0.2, 0.4) * seconds,
        outage_seconds=outage,
        limit=max(4, executions // 30),
    )


def _draw_call(
    dice: random.Random, number: int, engines: tuple[str, ...], seconds: float, longest: float
) -> Call:
    mark, at = f"mark-{number:05d}", dice.uniform(0, seconds)
    workflow, arguments = _draw_work(dice, mark, longest)
    door = dice.choices(list(Door), weights=(5, 3, 2))[0]
    persistence = dice.choices(list(Persistence), weights=(4, 4, 2))[0]
    impatient = door is Door.MCP and dice.random() < 0.3
    cancels = door is Door.REST and workflow == "countdown" and dice.random() < 0.4
    return Call(
        mark=mark,
        at=at,
        source=dice.choice(engines),
        workflow=workflow,
        arguments=arguments,
        caller=dice.choice(CALLERS),
        door=door,
        web=dice.randrange(len(WEBS)),
        persistence=persistence,
        repeat_after=_draw_pause(dice, left=seconds - at),
        hangs_up_after=dice.uniform(0.1, 3) if impatient else None,
        cancel_after=dice.uniform(0, longest / 2) if cancels else None,
    )


def _draw_pause(dice: random.Random, *, left: float) -> float:
    """At once, soon, or when nothing is held any more, unless nothing else would be going on by then."""
    pause = dice.choice((0.0, dice.uniform(0.2, 3), LEASE_AND_MORE))
    return pause if pause < left else 0.0


def _draw_work(dice: random.Random, mark: str, longest: float) -> tuple[str, dict[str, Any]]:
    kind = dice.choices(("statistics", "profile", "ragged", "countdown", "failing"), (35, 15, 10, 32, 8))[0]
    match kind:
        case "statistics":
            return "text_statistics", {"text": f"This text has the {mark}. " * dice.randint(1, 50)}
        case "profile":
            rows = "".join(f"{row},{dice.random():.4f}\n" for row in range(dice.randint(1, 200)))
            return "csv_profile", {"csv": f"{mark},value\n{rows}"}
        case "ragged":
            return "csv_profile", {"csv": f"{mark},value\n1,2\n3"}
    # Many short ones, a few as long as there may be.
    seconds = round(dice.choice((0, dice.uniform(0, 3), dice.uniform(0, longest))), 3)
    arguments = {"seconds": seconds, "message": f"as {mark} asked for"}
    return "countdown", arguments | ({"fail": True} if kind == "failing" else {})


def _draw_kills(dice: random.Random, count: int, engines: tuple[str, ...], seconds: float) -> list[Kill]:
    # Each kind once before any of them twice.
    first = [dice.choice(WEBS), dice.choice(WORKERS), dice.choice(engines), BEAT]
    dice.shuffle(first)
    weights = dict.fromkeys((*WEBS, *WORKERS), 6) | dict.fromkeys(engines, 8 // len(engines)) | {BEAT: 2}
    later = dice.choices(list(weights), weights=list(weights.values()), k=max(0, count - len(first)))
    times = sorted(dice.uniform(0.05, 0.8) * seconds for _ in range(count))
    return [
        Kill(at=at, program=program, pause=dice.uniform(0, 4))
        for at, program in zip(times, (first + later)[:count], strict=True)
    ]
