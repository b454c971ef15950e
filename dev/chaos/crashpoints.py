"""Ends a process at each statement, commit and request of a call, and checks what the next one makes of it.

For each kind of engine one call, or two at once, are made to the end, and their steps are counted. Then they
are made again for each of them, in a process that ends there as if it had been killed; another one, which
lives on as a worker does, goes on with what it finds.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from connectors.registry import usable_connectors
from dev.benchmarks._processes import own_database
from tests.packages import declare_package

KILLED = 137
WORKFLOW = "crash-report"
LOOKUP = "/runs?workflow_id={workflow_id}&idempotency_key={key}"
STEPS, REQUESTS = "statements and commits", "requests"
NOT_REACHED = "not reached"
QUESTION = {"id": "q1", "message": "Go on?", "schema": {"type": "object", "properties": {}}}
PARTS = 3
ROUNDS, ROUND_SECONDS = 30, 20
"""How often a worker looks at what is due, and how much time passes for the record between two looks."""


@dataclass
class Engine:
    """Answers from memory; ends the process that asks before or after it does what it is asked."""

    takes_keys: bool = False
    looks: int = 1
    """How often a run has to be looked at, or waited for, until it has ended."""
    looked: Counter[str] = field(default_factory=Counter)
    """How often each run was."""
    runs: dict[str, list[str]] = field(default_factory=dict)
    """The ids of the runs that were started, by the call's argument."""
    by_key: dict[str, str] = field(default_factory=dict)
    asks: bool = False
    """Each run waits for a person's answer."""
    answers: Counter[str] = field(default_factory=Counter)
    """How many came for each run."""
    asker: int = 0
    kill_at: int | None = None
    requests: int = 0
    base_url: str = ""

    def pass_point(self) -> None:
        """Each request has two: when it has arrived and when it is carried out but not answered."""
        if self.requests == self.kill_at:
            os.kill(self.asker, signal.SIGKILL)
        self.requests += 1

    def start(self, arguments: dict[str, Any], key: str) -> str:
        call = str(arguments["call"])
        if self.takes_keys and key in self.by_key:
            return self.by_key[key]
        run_id = f"{call}-{len(self.runs.setdefault(call, []))}"
        self.runs[call].append(run_id)
        if key:
            self.by_key[key] = run_id
        return run_id


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Headers and body are two packets: the second would wait 40 ms
    engine: ClassVar[Engine]

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        self._answer(json.loads(self.rfile.read(length) or "{}"))

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _answer(self, body: dict[str, Any]) -> None:
        self.engine.pass_point()
        path = urlsplit(self.path)
        key = self.headers.get("idempotency-key", "")
        answer: dict[str, Any]
        match path.path.rpartition("/")[2]:
            case "start":
                answer = {"workflow_id": self.engine.start(body["input"], key), "correlation_id": "c"}
            case "orders":
                answer = {"answer": self.engine.start(body, key)}
            case "status":
                run_id = path.path.split("/")[-2]
                self.engine.looked[run_id] += 1
                ended = self.engine.looked[run_id] >= self.engine.looks
                is_asking = self.engine.asks and not self.engine.answers[run_id]
                ended = ended and not is_asking
                answer = {"status": "COMPLETED" if ended else "RUNNING", "workflow_id": WORKFLOW}
                answer |= {"output": {"answer": run_id} if ended else None}
                answer |= {"questions": [QUESTION] if is_asking else []}
            case "answer":
                self.engine.answers[path.path.split("/")[-2]] += 1
                answer = {}
            case "retry":
                call = path.path.split("/")[-2].partition("-")[0]
                answer = {"workflow_id": self.engine.start({"call": call}, key)}
            case "runs" | "retries":
                asked = parse_qs(path.query)["idempotency_key"][0]
                found = [self.engine.by_key[asked]] if asked in self.engine.by_key else []
                answer = {"runs": [{"run_id": run_id, "status": "RUNNING"} for run_id in found]}
            case other:
                raise AssertionError(f"nobody asks for {other}")
        self.engine.pass_point()
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class EngineServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Those who asked may have been killed."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def running_engine(engine: Engine) -> Iterator[None]:
    handler = type("EngineHandler", (Handler,), {"engine": engine})
    server = EngineServer(("127.0.0.1", 0), handler)
    engine.base_url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Kind:
    """Of engine: what it promises, and what may come of a call that was interrupted."""

    name: str
    takes_keys: bool = False
    can_be_asked: bool = True
    """About a start whose answer is lost. Otherwise the call may end unconfirmed."""
    config: dict[str, Any] = field(default_factory=dict)
    source: str = "simplified"
    """The kind of its source; that of an HTTP tool answers the start with the result."""
    looks: int = 1
    calls: int = 1
    """At once: on SQLite their records share transactions."""
    asks: bool = False
    """Each run waits for a person, who answers in the process that ends, and again if it is asked again."""
    retries: str = ""
    """The action by which the call, whose run has failed, is made again: it is that which is interrupted."""


FAILED = "retry_failed"
KEYED = {"idempotency_header": "Idempotency-Key"}
STARTS = (
    Kind("one run for each key", takes_keys=True, config=KEYED),
    Kind("runs can be looked up by key", config={"run_lookup_path": LOOKUP}),
    Kind("neither", can_be_asked=False),
)
KINDS = (
    *STARTS,
    Kind("the answer is the result", can_be_asked=False, source="http"),
    Kind("the start lasts as long as the run", can_be_asked=False, source="holding"),
    Kind("a run that is waited for", can_be_asked=False, source="waiting", looks=3),
    Kind("a run that asks a person", takes_keys=True, config=KEYED, source="asking", asks=True),
    replace(STARTS[0], name="a retry", source="controlled", retries="retry"),
    *(
        replace(kind, name=f"a retry from the failed step, {kind.name}", source="controlled", retries=FAILED)
        for kind in STARTS
    ),
    Kind("two calls at once, one run for each key", takes_keys=True, config=KEYED, calls=2),
    Kind("two calls at once, neither", can_be_asked=False, calls=2),
    Kind("two calls at once, the answer is the result", can_be_asked=False, source="http", calls=2),
)


def in_process(work: Callable[[], Any], on_start: Callable[[int], None] = lambda _: None) -> tuple[int, Any]:
    """Run it in a fork, whose id `on_start` gets first. Returns its exit status and what it returned."""
    reader, writer = os.pipe()
    begin_reader, begin_writer = os.pipe()
    if not (child := os.fork()):
        os.close(reader)
        os.close(begin_writer)
        os.read(begin_reader, 1)
        status = 1
        try:
            os.write(writer, json.dumps(work()).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            sys.stderr.flush()
            os._exit(status)
    on_start(child)
    for each in (writer, begin_reader, begin_writer):
        os.close(each)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(told) if told else None


class Steps:
    """The statements and commits of this process, which ends before one of them."""

    def __init__(self, die_at: int | None) -> None:
        self.die_at, self.passed = die_at, 0

    def pass_one(self) -> None:
        if self.passed == self.die_at:
            os._exit(KILLED)
        self.passed += 1

    def install(self) -> None:
        from django.db.backends.base.base import BaseDatabaseWrapper
        from django.db.backends.signals import connection_created

        def execute(run: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
            self.pass_one()
            return run(sql, params, many, context)

        def watch(connection: Any, **_: Any) -> None:
            if execute not in connection.execute_wrappers:
                connection.execute_wrappers.append(execute)

        commit = BaseDatabaseWrapper.commit

        def count_and_commit(connection: Any) -> None:
            self.pass_one()
            commit(connection)

        connection_created.connect(watch, weak=False)
        BaseDatabaseWrapper.commit = count_and_commit  # type: ignore[method-assign, assignment]


def make_calls(numbers: Sequence[int], die_at: int | None, *, asks: bool, retries: str) -> int:
    """At once. Returns how many statements and commits they took."""
    from tests.executions.steps import advance_due_executions, call

    failed = [make_failure(number) for number in numbers] if retries else []

    async def at_once() -> None:
        calls: list[Any] = [retry(key, retries) for key in failed]
        calls = calls or [call(WORKFLOW, {"call": number}) for number in numbers]
        await asyncio.gather(*calls)

    steps = Steps(die_at)
    steps.install()
    asyncio.run(at_once())
    if asks:
        answer_all()
        advance_due_executions()
    return steps.passed


def make_failure(number: int) -> str:
    """A call whose run has failed. Returns the execution's id."""
    from django.db import connection

    from catalogue.models import Workflow
    from tests.executions.steps import ALICE
    from tests.factories import make_execution

    call = {"input": {"call": number}, "output": None}
    run = {"caller": ALICE.key, "caller_name": ALICE.name, "run_id": f"{number}-failed"}
    made = make_execution(Workflow.objects.get(), state="failed", payload=call, **run)
    connection.close()
    return str(made.pk)


async def retry(execution_id: str, action: str) -> None:
    from executions.control import Action, prepare_retry
    from executions.models import Execution
    from executions.waiting import start_and_wait
    from tests.executions.steps import ALICE

    door = Execution.Door.MCP
    await start_and_wait(await prepare_retry(execution_id, Action(action), caller=ALICE, door=door))


def answer_all() -> None:
    from executions.models import Execution
    from executions.questions import answer_questions

    for execution in Execution.objects.paused():
        answer_questions(execution, {str(QUESTION["id"]): {}}, by="Ada", door=Execution.Door.ADMIN)


def go_on() -> list[dict[str, Any]]:
    """As other processes do that find the leases run out. Returns the executions as they end."""
    from executions.models import Execution
    from tests.executions.steps import advance_due_executions, expire_lease, forget_caller, let_pass

    for _ in range(ROUNDS):
        going_on = [each for each in Execution.objects.all() if not each.is_settled]
        if not going_on:
            break
        for execution in going_on:
            expire_lease(execution)
            forget_caller(execution)
            let_pass(execution, ROUND_SECONDS)
        answer_all()
        advance_due_executions()
    rows = Execution.objects.select_related("payload")
    return [
        {
            "call": row.payload.input["call"],
            "is_failed_one": row.run_id.endswith("-failed"),
            "state": row.state,
            "output": row.payload.output,
            "error": row.error,
        }
        for row in rows
    ]


def clear() -> None:
    from executions.models import Execution

    Execution.objects.all().delete()


WORK = {work.__name__: work for work in (clear, go_on)}


def serve(line: Connection) -> None:
    while wanted := line.recv():
        line.send(WORK[wanted]())


@contextmanager
def survivor() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """A process that is not killed. Yields what has it do a piece of WORK, and returns what that returns."""
    fork = multiprocessing.get_context("fork")
    near, far = fork.Pipe()
    process = fork.Process(target=serve, args=[far], daemon=True)
    process.start()
    far.close()

    def have_done(work: Callable[[], Any]) -> Any:
        near.send(work.__name__)
        return near.recv()

    with near:
        yield have_done
        near.send("")
        process.join()


def prepare(kind: Kind, engine: Engine) -> None:
    """The one workflow, of a source of this kind."""
    from catalogue.models import Source
    from connectors.http_tools.checks import definition_of
    from connectors.http_tools.tool import connection_of
    from tests.connectors.declared_tools import TEXT, tool
    from tests.factories import make_source, make_workflow

    if kind.source != "http":
        source = make_source(base_url=engine.base_url, kind=kind.source, config=kind.config)
        make_workflow(source, upstream_id=WORKFLOW, name=WORKFLOW)
        return
    config = tool("POST", f"{engine.base_url}/orders", properties={"call": TEXT | {"type": "integer"}})
    connection = connection_of(config)
    source = Source(name="api", kind="http", config={"base_url": connection.base_url, **connection.settings})
    source.credentials = connection.secrets
    source.save()
    definition = definition_of(config, base_url=connection.base_url)
    make_workflow(
        source,
        name=WORKFLOW,
        upstream_id=definition.id,
        input_schema=definition.input_schema,
        execution_type=definition.execution_type,
        metadata=definition.metadata,
    )


def forget_workflows() -> None:
    from catalogue.models import Source, Workflow
    from executions.models import Execution

    Execution.objects.all().delete()
    Workflow.objects.all().delete()
    Source.objects.all().delete()


def judge(kind: Kind, runs: list[str], rows: list[dict[str, Any]]) -> str:
    """What an interrupted call came to; a word in capitals is a violation."""
    if len(runs) > 1:
        return f"DOUBLED: {len(runs)} runs"
    if not rows:
        return "never recorded" if not runs else "LOST: it ran without a record"
    (row,) = rows
    state, ran = row["state"], "ran" if runs else "not run"
    if state == "completed":
        answer = (row["output"] or {}).get("answer")
        return f"completed, {ran}" if runs == [answer] else f"WRONG: {row['output']} of {runs}"
    if state == "unconfirmed":
        return f"unconfirmed, {ran}" if not kind.can_be_asked else "WRONG: unconfirmed, and it could be asked"
    if state == "cancelled" and not runs:
        return "cancelled before it was started"
    return f"WRONG: {state}, {ran}: {row['error']}"


def visit(kind: Kind) -> Counter[tuple[str, str]]:
    """What came of the calls and by which kind of point, by how often."""
    engine = Engine(takes_keys=kind.takes_keys, looks=kind.looks, asks=kind.asks)
    outcomes: Counter[tuple[str, str]] = Counter()

    def run_calls(numbers: Sequence[int], step: int | None) -> tuple[int, Any]:
        return in_process(
            lambda: make_calls(numbers, step, asks=kind.asks, retries=kind.retries),
            lambda process: setattr(engine, "asker", process),
        )

    with running_engine(engine):
        status, _ = in_process(lambda: prepare(kind, engine))
        assert status == 0, "the workflow could not be made"
        status, steps = run_calls(range(kind.calls), None)
        assert status == 0, f"the call itself failed: {status}"
        requests = engine.requests
        points = [(step, None) for step in range(steps)] + [(None, point) for point in range(requests)]
        with survivor() as others:
            for number, (step, point) in enumerate(points, 1):
                others(clear)
                engine.requests, engine.kill_at = 0, point
                numbers = range(number * kind.calls, (number + 1) * kind.calls)
                status, _ = run_calls(numbers, step)
                engine.kill_at = None
                assert status in (0, KILLED, -signal.SIGKILL), f"it ended by itself: {status}"
                rows = others(go_on) if status else []
                for each in numbers:
                    its_rows = [row for row in rows if row["call"] == each and not row["is_failed_one"]]
                    outcome = judge(kind, engine.runs.get(str(each), []), its_rows) if status else NOT_REACHED
                    if (answers := sum(engine.answers[run] for run in engine.runs.get(str(each), []))) > 1:
                        outcome = f"DOUBLED: {answers} answers"
                    outcomes[STEPS if point is None else REQUESTS, outcome] += 1
                    if is_violation(outcome):
                        where = f"step {step}" if step is not None else f"request point {point}"
                        print(f"  {outcome} (killed at {where} of {steps} and {requests})", flush=True)
        in_process(forget_workflows)
    return outcomes


def describe(outcomes: Counter[tuple[str, str]], calls: int) -> str:
    """`38 points; statements and commits: 15 never recorded, 9 completed, ran; requests: ...`, each outcome
    by the number of calls."""
    parts = [f"{outcomes.total() // calls} points"]
    for points in (STEPS, REQUESTS):
        counts = [
            f"{count} {outcome}" for (where, outcome), count in outcomes.most_common() if where == points
        ]
        total = sum(count for (where, _), count in outcomes.items() if where == points) // calls
        parts.append(f"{total} {points}: {' / '.join(counts)}")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.chaos.crashpoints", description=__doc__)
    parser.add_argument("--kind", metavar="WORDS", default="", help="only the kinds whose name contains this")
    parser.add_argument("--part", type=int, help=f"only this part of {PARTS}, from 0, to share the time")
    options = parser.parse_args()
    kinds = KINDS if options.part is None else KINDS[options.part :: PARTS]
    with (
        tempfile.TemporaryDirectory(prefix="workflow-catalogue-crashes-") as folder,
        own_django(Path(folder)) as database,
    ):
        begun, visited, violations = time.monotonic(), 0, 0
        for kind in (each for each in kinds if options.kind in each.name):
            outcomes = visit(kind)
            print(f"{kind.name} (on {database}): {describe(outcomes, kind.calls)}", flush=True)
            visited += outcomes.total() // kind.calls
            violations += sum(count for (_, outcome), count in outcomes.items() if is_violation(outcome))
        took, worked = time.monotonic() - begun, sum(os.times()[:4])
        print(
            f"{violations} lost, doubled or wrong at {visited} points, in {took:.0f} s, {worked:.0f} of CPU"
        )
    sys.exit(bool(violations))


@contextmanager
def own_django(folder: Path) -> Iterator[str]:
    """A database of its own, SQLite or beside that of DATABASE_URL; this process keeps no connection."""
    os.environ |= {
        "CATALOGUE_DATA_DIR": str(folder),
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "CATALOGUE_HTTP_TOOL_HOSTS": "127.0.0.1",
        "LOG_LEVEL": "ERROR",
    }
    with own_database(os.environ.get("DATABASE_URL", "")) as database:
        import django
        from django.db import connection

        django.setup()
        connection.close()
        if connection.vendor == "postgresql":
            connection.close_pool()  # type: ignore[attr-defined]
        # Imported here once, not in every fork.
        import anyio._backends._asyncio  # noqa: F401

        import tests.executions.steps  # noqa: F401

        declare_package(
            folder,
            "patient-engines",
            waiting="dev.chaos.patient:WaitingConnector",
            asking="tests.executions.asking_engine:AskingConnector",
            holding="dev.chaos.patient:HoldingConnector",
            controlled="tests.executions.controlled_engine:ControlledConnector",
        )
        sys.path.insert(0, str(folder))
        assert {kind.source for kind in KINDS} <= usable_connectors().keys()
        yield database


def is_violation(outcome: str) -> bool:
    return outcome.partition(":")[0].isupper()


if __name__ == "__main__":
    main()
