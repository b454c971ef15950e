"""An upgrade under load: web processes, workers and beat, replaced one by one by those of a next version.

The next version is a copy of this one with another number, a migration that expands the database, and code
that writes what that added. Old and new processes share the database for most of the run. The last line holds
the figures; every line above it that begins with LOST, DOUBLED, WRONG or BROKEN is a violation, and then the
exit code is 1 and the logs are kept.
"""

import argparse
import asyncio
import itertools
import json
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from dev.chaos.clients import Crowd, Story
from dev.chaos.deployment import Deployment, deployed
from dev.chaos.plan import BEAT, CALLERS, KEYED, PLAIN, WEBS, WORKERS, Call, Door, Persistence
from dev.chaos.programs import ROOT
from dev.chaos.records import Records
from dev.chaos.stacks import StackName, Unavailable, choose_name, own_stack
from dev.chaos.verdict import Verdict, judge

NEXT_VERSION = "1.1.0.dev0"
COLUMN = "written_by"
MIGRATION = """
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("executions", "{last}")]
    operations = [
        migrations.AddField("execution", "{column}", models.CharField(max_length=20, db_default="")),
        migrations.CreateModel("NextThing", [("id", models.BigAutoField(primary_key=True))]),
    ]
"""
MODEL = """

from django.db import models as _models

Execution.add_to_class(
    "{column}", _models.CharField(max_length=20, default="{version}", db_default="")
)
"""
COUNT = """
import json, django
django.setup()
from django.db.models import Count, Max, Min
from executions.models import Execution
rows = Execution.objects.values("{column}").annotate(
    count=Count("pk"), first=Min("created_at"), last=Max("created_at")
)
print(json.dumps({{
    row["{column}"]: [row["count"], row["first"].timestamp(), row["last"].timestamp()] for row in rows
}}))
"""
ORDER = (WORKERS[0], WEBS[0], WORKERS[1], WEBS[1], BEAT)
GRACEFUL_SECONDS = 5
CLOSED = ("ReadError", "WriteError", "RemoteProtocolError")
"""Ends of a connection without an answer."""
STOP_SECONDS = 60.0
"""That a program has for its end; far more than is needed."""
BETWEEN_SECONDS = 3.0
PATIENCE_SECONDS = 300.0
LIMIT = 50
"""Runs of one engine at a time: more than there ever are."""
LONGEST = 9.0
"""Seconds of a run, which no call waits for as long as that: some end after the process that began them."""


@dataclass
class Upgrade:
    stories: list[Story] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """That each program took to end and its successor to answer."""
    exit_codes: dict[str, int] = field(default_factory=dict)
    streams: Counter[str] = field(default_factory=Counter)
    """Ends of event streams that clients held open."""
    written: dict[str, list[float]] = field(default_factory=dict)
    """By version: executions, and when the first and the last were made."""


def make_next_version(folder: Path) -> Path:
    """What the wheel contains, changed; returns where `manage.py` is."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name in wheel["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    (folder / "VERSION").write_text(f"{NEXT_VERSION}\n")
    migrations = folder / "executions" / "migrations"
    last = max(path.stem for path in migrations.glob("0*.py"))
    migration = MIGRATION.format(last=last, column=COLUMN)
    (migrations / f"{int(last[:4]) + 1:04d}_next_version.py").write_text(migration)
    with (folder / "executions" / "models" / "__init__.py").open("a") as models:
        models.write(MODEL.format(column=COLUMN, version=NEXT_VERSION))
    return folder


class Rollout:
    def __init__(
        self, deployment: Deployment, following: Path, dice: random.Random, *, between: float
    ) -> None:
        self._deployment, self._following, self._dice = deployment, following, dice
        self._between = between
        self._numbers = itertools.count()
        self.upgrade = Upgrade()
        self._over = asyncio.Event()

    async def run(self, clients: int) -> Upgrade:
        crowd = Crowd(self._deployment, patience=PATIENCE_SECONDS)
        try:
            async with asyncio.TaskGroup() as together:
                together.create_task(self._replace_everything())
                for number in range(clients):
                    together.create_task(self._call_until_the_end(crowd, number))
                for web in range(len(WEBS)):
                    together.create_task(self._listen_until_the_end(web))
        finally:
            await crowd.aclose()
        return self.upgrade

    async def _replace_everything(self) -> None:
        """As docs/deployment.md says."""
        try:
            await asyncio.sleep(self._between)
            await asyncio.to_thread(in_product, self._deployment, self._following, "manage.py", "migrate")
            for name in ORDER:
                await asyncio.sleep(self._between)
                began = time.monotonic()
                program = self._deployment.programs[name]
                code = await program.replace(self._following, seconds=STOP_SECONDS)
                self.upgrade.exit_codes[name] = code
                self.upgrade.seconds[name] = time.monotonic() - began
            await asyncio.sleep(self._between)
        finally:
            self._over.set()

    async def _call_until_the_end(self, crowd: Crowd, number: int) -> None:
        while not self._over.is_set():
            story = await crowd.live_through(self._draw_call(number))
            self.upgrade.stories.append(story)
            if story.answer is None and not story.refusals:
                return  # The crowd's patience is over: further calls would end at once, in an endless loop

    def _draw_call(self, client: int) -> Call:
        dice, mark = self._dice, f"mark-{next(self._numbers):05d}"
        seconds = round(dice.choice((0.0, dice.uniform(0, 2), dice.uniform(0, LONGEST))), 2)
        return Call(
            mark=mark,
            at=0.0,
            source=dice.choice((KEYED, PLAIN)),
            workflow="countdown",
            arguments={"seconds": seconds, "message": f"as {mark} asked for"},
            caller=CALLERS[client % len(CALLERS)],
            door=dice.choices(list(Door), weights=(6, 2, 2))[0],
            web=dice.randrange(len(WEBS)),
            persistence=dice.choice((Persistence.KEY, Persistence.REPEAT)),
            repeat_after=0.0,
            hangs_up_after=None,
            cancel_after=None,
        )

    async def _listen_until_the_end(self, web: int) -> None:
        """An event stream of the handshake era, opened again whenever it has ended."""
        headers = {
            "accept": "text/event-stream",
            "authorization": f"Bearer {self._deployment.tokens[CALLERS[0]]}",
        }
        async with httpx2.AsyncClient(timeout=5, trust_env=False) as client:
            while not self._over.is_set():
                try:
                    async with client.stream("GET", f"{self._url(web)}/mcp", headers=headers) as stream:
                        async for _ in stream.aiter_bytes():
                            if self._over.is_set():
                                return
                    self.upgrade.streams["ended as the protocol has it"] += 1
                except httpx2.ConnectError:
                    self.upgrade.streams["refused"] += 1
                except httpx2.ReadTimeout:
                    continue  # Nothing happened
                except httpx2.TransportError as error:
                    self.upgrade.streams[f"broken off ({type(error).__name__})"] += 1
                await asyncio.sleep(0.2)

    def _url(self, web: int) -> str:
        return self._deployment.web_urls[web]


def in_product(deployment: Deployment, root: Path, *words: str) -> str:
    outcome = subprocess.run(
        [sys.executable, *words],
        cwd=root,
        env=deployment.variables | {"DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    if outcome.returncode:
        raise RuntimeError(f"{' '.join(words)[:100]}: {outcome.stderr[-3000:]}")
    return outcome.stdout


async def roll(
    stack_name: StackName, *, seed: int, clients: int, between: float, folder: Path
) -> tuple[Upgrade, Verdict]:
    """Raises stacks.Unavailable."""
    following = make_next_version(folder / "next")
    limits = {KEYED: LIMIT, PLAIN: LIMIT}
    with own_stack(stack_name) as stack:
        async with deployed(stack, folder, limits=limits, graceful_seconds=GRACEFUL_SECONDS) as deployment:
            rollout = Rollout(deployment, following, random.Random(seed), between=between)
            upgrade = await rollout.run(clients)
            records = Records(deployment)
            try:
                await records.wait_until_settled(seconds=PATIENCE_SECONDS)
                verdict = judge(
                    upgrade.stories, await records.executions(), await records.runs(), limit=LIMIT
                )
            finally:
                await records.aclose()
            counted = in_product(deployment, following, "-c", COUNT.format(column=COLUMN))
            upgrade.written = json.loads(counted)
    return upgrade, verdict


def violations(upgrade: Upgrade, verdict: Verdict) -> list[str]:
    found = [f"{one.kind.upper()} {one.mark}: {one.what}" for one in verdict.violations]
    broken = [(story, reason) for story in upgrade.stories for reason in story.breaks.elements()]
    closed = [one for one in broken if one[1] in CLOSED]
    # A request that arrives while the socket is being closed has no answer; its client repeats it.
    for story, reason in broken if len(closed) > len(WEBS) else [one for one in broken if one not in closed]:
        found.append(f"BROKEN {story.call.mark}: {reason} ({story.call.door})")
    found += [f"BROKEN stream: {end} x{n}" for end, n in upgrade.streams.items() if end.startswith("broken")]
    if upgrade.written.keys() != {"", NEXT_VERSION}:
        found.append(f"WRONG: executions were made by {list(upgrade.written)}, not by both versions")
    elif upgrade.written[""][2] < upgrade.written[NEXT_VERSION][1]:
        found.append("WRONG: the old version made no execution after the new one had begun")
    return found


def figures(stack: StackName, seed: int, upgrade: Upgrade, verdict: Verdict) -> str:
    told = {
        "seed": seed,
        "calls": len(upgrade.stories),
        "old": int(upgrade.written.get("", [0])[0]),
        "new": int(upgrade.written.get(NEXT_VERSION, [0])[0]),
        "broken": sum(story.breaks.total() for story in upgrade.stories),
        "unconfirmed": len(verdict.unconfirmed),
        "violations": len(violations(upgrade, verdict)),
    }
    return " ".join([stack.value, *(f"{name}={value}" for name, value in told.items())])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dev.chaos.rolling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stack", type=StackName, choices=list(StackName))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--clients", type=int, default=20, metavar="N", help="that call all the time (20)")
    parser.add_argument(
        "--between",
        type=float,
        default=BETWEEN_SECONDS,
        metavar="S",
        help="seconds of calls before each step and after the last (default: %(default)g)",
    )
    given = parser.parse_args()
    stack = given.stack or choose_name()
    seed = secrets.randbelow(100_000) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="workflow-catalogue-rolling-"))
    print(f"Seed {seed} on {stack}; logs and data are in {folder}", flush=True)
    try:
        upgrade, verdict = asyncio.run(
            roll(stack, seed=seed, clients=given.clients, between=given.between, folder=folder)
        )
    except Unavailable as error:
        sys.exit(str(error))
    for name, seconds in upgrade.seconds.items():
        print(f"Replaced {name} in {seconds:.1f} s (exit code {upgrade.exit_codes[name]})")
    for end, count in upgrade.streams.items():
        print(f"Event streams {end}: {count}")
    found = violations(upgrade, verdict)
    print("\n".join(found[:40]))
    print(figures(stack, seed, upgrade, verdict))
    if found:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
