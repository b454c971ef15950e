"""Calls that people have to approve, decided by three at once while web and worker processes are killed.

The last line holds the figures; every line above it that begins with WRONG is a violation, and then the exit
code is 1 and the logs are kept.
"""

import argparse
import asyncio
import json
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from dev.chaos.deployment import OBSERVER, Deployment, deployed
from dev.chaos.plan import BEAT, CALLERS, KEYED, PLAIN, WEBS, WORKERS
from dev.chaos.programs import ROOT
from dev.chaos.records import MARK
from dev.chaos.stacks import StackName, Unavailable, choose_name, own_stack

APPROVERS = ("anna", "ben", "cleo")
TOOL = "text_statistics"
AT_ONCE = 8  # Calls of all callers, and decisions of one approver, that are under way together
TRY_AGAIN_SECONDS = 0.3
PATIENCE_SECONDS = 900.0
CSRF = "c" * 32
WAITING = {"state": "waiting", "page_size": "200", "ordering": "requested_at"}
# Whose calls need how many people: those of the engine without keys need two.
NEEDED = {KEYED: 1, PLAIN: 2}
REFUSED, CONTESTED, CANCELLED, CHANGED, APPROVED = "refused", "contested", "cancelled", "changed", "approved"
PREPARE = """
import json, sys, django
django.setup()
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from catalogue.actions.workflows import override_workflow
from catalogue.models import Workflow
wanted = json.load(sys.stdin)
for source, needed in wanted["needed"].items():
    for workflow in Workflow.objects.filter(source__name=source, name=wanted["tool"]):
        override_workflow(workflow, approval_required=True, approvers_needed=needed)
sessions = {}
for name in wanted["approvers"]:
    user = User.objects.create_superuser(name, f"{name}@example.com")
    session = SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session.save()
    sessions[name] = session.session_key
print(json.dumps(sessions))
"""
CHANGE = """
import json, sys, django
django.setup()
from executions.models import ExecutionPayload
for payload in ExecutionPayload.objects.filter(pk__in=json.load(sys.stdin)):
    payload.input = {"text": "Other arguments: " + payload.input["text"]}
    payload.save()
"""


@dataclass
class Call:
    mark: str
    source: str
    caller: str
    fate: str
    execution_id: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        return {"text": f"This text has the {self.mark}."}


@dataclass
class Outcome:
    calls: list[Call]
    kills: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)  # To decisions, by HTTP status
    wrong: list[str] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    runs: int = 0


def draw_calls(dice: random.Random, number: int) -> list[Call]:
    weights = {APPROVED: 60, REFUSED: 10, CONTESTED: 14, CANCELLED: 10, CHANGED: 6}
    return [
        Call(
            mark=f"mark-{index:05d}",
            source=dice.choice(list(NEEDED)),
            caller=dice.choice(CALLERS),
            fate=dice.choices(list(weights), list(weights.values()))[0],
        )
        for index in range(number)
    ]


class Show:
    def __init__(self, deployment: Deployment, dice: random.Random, calls: list[Call]) -> None:
        self._deployment, self._dice = deployment, dice
        self.outcome = Outcome(calls)
        self._calls = {call.mark: call for call in calls}
        self._client = httpx2.AsyncClient(timeout=60, trust_env=False)
        self._all_made = self._is_over = False
        self._decided: set[str] = set()
        self._give_up_at = time.monotonic() + PATIENCE_SECONDS

    async def run(self, kills: int) -> Outcome:
        given = {"needed": NEEDED, "tool": TOOL, "approvers": APPROVERS}
        sessions = json.loads(await asyncio.to_thread(self._in_product, PREPARE, given))
        # Every process notices the new requirement within a second.
        await asyncio.sleep(1.5)
        killing = asyncio.create_task(self._kill(kills))
        watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as together:
                together.create_task(self._make_calls())
                for name in APPROVERS:
                    together.create_task(self._decide(name, sessions[name]))
            self._is_over = True
            await killing  # To its end: cancelled in the middle of a kill, it would leave a program dead
            await self._deployment.wait_until_up()
            await self._settle()
            await self._judge()
        finally:
            killing.cancel()
            watching.cancel()
            await self._client.aclose()
        return self.outcome

    def _in_product(self, program: str, given: Any) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=self._deployment.variables | {"DJANGO_SETTINGS_MODULE": "config.settings"},
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        return done.stdout

    async def _kill(self, number: int) -> None:
        """Each kind once before any of them twice; spread over the calls and the decisions, not the time."""
        names = [WEBS[0], WORKERS[0], WEBS[1], WORKERS[1]]
        while (index := self.outcome.kills.total()) < number:
            await asyncio.sleep(self._dice.uniform(0.5, 3))
            if not self._is_over and self._progress * (number + 1) < index + 1:
                continue
            name = names[index] if index < len(names) else self._dice.choice([*WEBS, *WORKERS, BEAT])
            await self._deployment.programs[name].kill(pause=self._dice.uniform(0, 2))
            self.outcome.kills[name] += 1

    async def _watch(self) -> None:
        while True:
            for program in self._deployment.programs.values():
                await program.keep_up()
            await asyncio.sleep(0.5)

    @property
    def _progress(self) -> float:
        """From 0 to 1: calls that were made, and those that someone has decided."""
        made = sum(bool(call.execution_id) for call in self.outcome.calls)
        return (made + len(self._decided)) / (2 * len(self.outcome.calls))

    # Callers

    async def _make_calls(self) -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def make(call: Call) -> str:
            async with places:
                return await self._make(call)

        async def make_known(call: Call) -> None:
            call.execution_id = await make(call)

        changed = [call for call in self.outcome.calls if call.fate == CHANGED]
        keys = await asyncio.gather(*map(make, changed))
        # As a fault or an attacker would, past every door, and before anyone decides.
        await asyncio.to_thread(self._in_product, CHANGE, keys)
        for call, key in zip(changed, keys, strict=True):
            call.execution_id = key
        await asyncio.gather(*(make_known(call) for call in self.outcome.calls if call.fate != CHANGED))
        self._all_made = True

    async def _make(self, call: Call) -> str:
        tool = self._deployment.tools[call.source][TOOL]
        headers = {
            "authorization": f"Bearer {self._deployment.tokens[call.caller]}",
            "idempotency-key": call.mark,
        }
        body = {"tool": tool, "arguments": call.arguments}
        answer = await self._insist(
            lambda url: self._client.post(f"{url}/api/executions/", json=body, headers=headers)
        )
        told = answer.json()
        if answer.status_code not in (200, 201, 202):
            raise RuntimeError(f"A call was refused: {answer.status_code} {answer.text[:500]}")
        return str(told["id"])

    async def _insist(self, ask: Callable[[str], Awaitable[httpx2.Response]]) -> httpx2.Response:
        while time.monotonic() < self._give_up_at:
            try:
                answer = await ask(self._dice.choice(self._deployment.web_urls))
            except httpx2.TransportError:
                pass
            else:
                if answer.status_code < 500:
                    return answer
            await asyncio.sleep(TRY_AGAIN_SECONDS)
        raise RuntimeError("no answer for too long")

    # Approvers

    async def _decide(self, name: str, session: str) -> None:
        """Each takes what waits in an order of their own; two requests for one call may be on their way."""
        headers = {"cookie": f"sessionid={session}; csrftoken={CSRF}", "x-csrftoken": CSRF}
        places, done = asyncio.Semaphore(AT_ONCE), set[str]()
        while time.monotonic() < self._give_up_at:
            listed = await self._insist(
                lambda url: self._client.get(f"{url}/api/approvals/", params=WAITING, headers=headers)
            )
            waiting = [row["execution"] for row in listed.json()["results"]]
            if not waiting and self._all_made:
                return
            known = {call.execution_id: call for call in self.outcome.calls if call.execution_id}
            mine = [known[key] for key in waiting if key in known and key not in done]
            self._dice.shuffle(mine)

            async def answer(call: Call) -> None:
                async with places:
                    if await self._answer(name, call, headers):
                        done.add(call.execution_id)

            await asyncio.gather(*map(answer, mine))
            if not mine:
                await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def _answer(self, name: str, call: Call, headers: dict[str, str]) -> bool:
        """False where it is to be tried again: a killed process may have answered nobody."""
        key = call.execution_id
        refuses = call.fate == REFUSED or (call.fate == CONTESTED and name == APPROVERS[2])
        verb, body = ("refuse", {"words": f"Not {call.mark}."}) if refuses else ("approve", {})
        url = self._dice.choice(self._deployment.web_urls)
        if call.fate == CANCELLED and name == APPROVERS[0]:
            token = self._deployment.tokens[call.caller]
            verb, body = "cancel", {}
            path, headers = f"/api/executions/{key}/cancel/", {"authorization": f"Bearer {token}"}
        else:
            path = f"/api/approvals/{key}/{verb}/"
        try:
            answer = await self._client.post(f"{url}{path}", json=body, headers=headers)
        except httpx2.TransportError:
            self.outcome.answers["broken"] += 1
            return False
        self.outcome.answers[f"{verb} {answer.status_code}"] += 1
        is_answered = answer.status_code in (200, 202, 409)
        if is_answered:
            self._decided.add(key)
        return is_answered

    # The verdict

    async def _settle(self) -> None:
        for state in ("unapproved", "pending", "starting", "running"):
            while time.monotonic() < self._give_up_at:
                if not (await self._get("/executions/", state=state, page_size="1"))["count"]:
                    break
                await asyncio.sleep(1)

    async def _get(self, path: str, **query: str) -> Any:
        headers = {"authorization": f"Bearer {self._deployment.tokens[OBSERVER]}"}
        answer = await self._insist(
            lambda url: self._client.get(f"{url}/api{path}", params=query, headers=headers)
        )
        return answer.raise_for_status().json()

    async def _all(self, path: str) -> list[dict[str, Any]]:
        found, page = [], 1
        while True:
            listed = await self._get(path, page=str(page), page_size="200")
            found += listed["results"]
            if not listed["next"]:
                return found
            page += 1

    async def _runs(self) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for name, engine in self._deployment.engines.items():
            headers = {"authorization": f"Api-Key {engine.api_key}"}
            answer = await self._client.get(f"{engine.base_url}/runs", headers=headers)
            found += [(name, run) for run in answer.raise_for_status().json()["runs"]]
        return found

    async def _judge(self) -> None:
        approvals = {row["execution"]: row for row in await self._all("/approvals/")}
        executions = {row["id"]: row for row in await self._all("/executions/")}
        runs = await self._runs()
        wrong, calls = self.outcome.wrong, self._calls
        marks = Counter(found[0] for _, run in runs if (found := MARK.search(json.dumps(run["input"]))))
        wrong += [f"{mark} ran {number} times" for mark, number in marks.items() if number > 1]
        for source, run in runs:
            found = MARK.search(json.dumps(run["input"]))
            call = calls.get(found[0]) if found else None
            if call is None or source != call.source:
                wrong.append(f"a run that no call wanted: {run['input']}")
            else:
                wrong += self._faults_of_run(call, run, approvals[call.execution_id])
        if len(executions) != len(calls) or len(approvals) != len(calls):
            wrong.append(f"{len(executions)} executions and {len(approvals)} approvals of {len(calls)} calls")
        for call in calls.values():
            approval, execution = approvals[call.execution_id], executions[call.execution_id]
            self.outcome.states[f"{approval['state']}/{execution['state']}"] += 1
            has_ended = execution["state"] in ("completed", "failed", "cancelled", "timed_out", "unconfirmed")
            if approval["state"] == "waiting" or not has_ended:
                wrong.append(f"{call.mark} is {approval['state']} and {execution['state']} in the end")
            elif self._should_have_run(call, approval, execution) and not marks[call.mark]:
                wrong.append(f"{call.mark} was approved and did not run: {execution['error']}")
        self.outcome.runs = len(runs)

    def _should_have_run(self, call: Call, approval: dict[str, Any], execution: dict[str, Any]) -> bool:
        # Its caller may also cancel it in the queue, after the approval.
        is_cancelled = call.fate == CANCELLED and execution["state"] == "cancelled"
        # An engine without keys is not asked again when a kill hides whether it has the start.
        is_unknown = call.source == PLAIN and execution["state"] == "unconfirmed"
        return approval["state"] == "approved" and call.fate != CHANGED and not (is_cancelled or is_unknown)

    def _faults_of_run(self, call: Call, run: dict[str, Any], approval: dict[str, Any]) -> list[str]:
        faults = []
        approvers = {one["user"] for one in approval["decisions"] if one["verdict"] == "approve"}
        if approval["state"] != "approved" or len(approvers) < NEEDED[call.source]:
            faults.append(f"{call.mark} ran, and is {approval['state']} by {approvers or 'no one'}")
        if call.arguments["text"] not in _texts_in(run["input"]) or call.fate == CHANGED:
            faults.append(f"{call.mark} ran with other arguments: {run['input']}")
        return faults


def _texts_in(value: Any) -> list[str]:
    """All texts of a JSON value, whole."""
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _texts_in(inner)]
    return [value] if isinstance(value, str) else []


async def show(stack_name: StackName, seed: int, number: int, kills: int, folder: Path) -> Outcome:
    """Raises stacks.Unavailable."""
    dice = random.Random(seed)
    calls = draw_calls(dice, number)
    with own_stack(stack_name) as stack:
        async with deployed(stack, folder, engines=(KEYED, PLAIN)) as deployment:
            return await Show(deployment, dice, calls).run(kills)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.chaos.approvals", description=__doc__)
    parser.add_argument("--stack", type=StackName, choices=list(StackName))
    parser.add_argument("--seed", type=int, help="of the calls, the decisions and the kills (default: any)")
    parser.add_argument("--calls", type=int, default=1000, metavar="N", help="(default: 1000)")
    parser.add_argument("--kills", type=int, default=30, metavar="N", help="of web and worker (default: 30)")
    given = parser.parse_args()
    stack = given.stack or choose_name()
    seed = secrets.randbelow(100_000) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="workflow-catalogue-approvals-"))
    print(f"Seed {seed} on {stack}; logs and data are in {folder}", flush=True)
    began = time.monotonic()
    try:
        outcome = asyncio.run(show(stack, seed, given.calls, given.kills, folder))
    except Unavailable as error:
        sys.exit(str(error))
    print(f"Decisions and their answers: {dict(sorted(outcome.answers.items()))}")
    print(f"Approvals and executions: {dict(sorted(outcome.states.items()))}")
    for fault in outcome.wrong:
        print(f"WRONG {fault}")
    print(
        f"{stack} calls={len(outcome.calls)} runs={outcome.runs} kills={outcome.kills.total()} "
        f"wrong={len(outcome.wrong)} seconds={time.monotonic() - began:.0f}"
    )
    if outcome.wrong:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
