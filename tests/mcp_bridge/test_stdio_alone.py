"""The command on standard input and output where nothing else runs: it lists and follows by itself."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.db.models import F
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from catalogue.models import DiscoveryRun, Source, Workflow
from connectors.testing.harness import eventually
from executions.local_worker import SILENCE, note_worker
from executions.models import Execution, WorkerPresence
from tests.connectors.scripted import replies
from tests.executions.engines import PATIENCE_SECONDS, Gate, wait_until
from tests.executions.steps import expire_lease, read
from tests.factories import make_source, make_workflow
from tests.mcp_bridge.piped import Piped, piped
from tests.processes import ROOT, ExampleEngine

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

ALONE = "No worker is running"
TAKEN_OVER = "Another process lists the engines and follows the runs"
IMPATIENT = {"CATALOGUE_INLINE_WAIT": "0.5", "CATALOGUE_STATUS_CHECK_INTERVAL": "1", "LOG_LEVEL": "INFO"}
Start = Callable[..., Piped]


@pytest.fixture
def start(stdio_server: StdioServerParameters, tmp_path: Path) -> Iterator[Start]:
    """Start the command once more: `start()`."""
    with ExitStack() as running:
        started: list[Piped] = []

        def begin(**environment: str) -> Piped:
            log = tmp_path / f"stderr-{len(started)}.log"
            started.append(running.enter_context(piped(stdio_server, log, **IMPATIENT, **environment)))
            started[-1].ask("tools/list")
            return started[-1]

        yield begin


@pytest.fixture
def countdown(example_engine: ExampleEngine, transactional_db: None) -> Workflow:
    source = make_source(base_url=example_engine.base_url, api_key=example_engine.api_key)
    return make_workflow(source, upstream_id="1003", name="countdown")


def let_pass(time: timedelta) -> None:
    """As if nobody had said for so long that it does what is due."""
    WorkerPresence.objects.update(seen_at=F("seen_at") - time)


async def has_tool(client: Client, name: str) -> bool:
    return name in {tool.name for tool in (await client.list_tools()).tools}


def call(process: Piped, seconds: float) -> Execution:
    """An execution that was answered with a handle, so that this process waits for it no more."""
    answer = process.ask("tools/call", number=2, name="countdown", arguments={"seconds": seconds})
    handle = answer["result"]["structuredContent"]
    assert handle["state"] == "running"
    return Execution.objects.get(pk=handle["execution_id"])


async def test_on_an_empty_folder_one_command_and_a_client_are_all_it_takes(tmp_path, example_engine):
    """A1.1, A7.1, E8: database, listing, and a run that outlasts its call, without worker or migration."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "CELERY_BROKER_URL")
    }
    environment |= IMPATIENT | {"CATALOGUE_DATA_DIR": str(tmp_path / "data")}
    manage = str(Path(ROOT, "manage.py"))
    config = json.dumps({"base_url": example_engine.base_url})
    add = [*(sys.executable, manage, "add_source", "example", "simplified"), "--expose-new"]
    secret = ["--config", config, "--secret", f"api_key={example_engine.api_key}"]
    adding = await asyncio.create_subprocess_exec(*add, *secret, env=environment, cwd=tmp_path)
    assert await adding.wait() == 0

    server = StdioServerParameters(
        command=sys.executable, args=[manage, "mcp_stdio"], env=environment, cwd=str(tmp_path)
    )
    async with Client(server, cache=None) as client:
        assert ALONE in (client.instructions or "")
        await eventually(lambda: has_tool(client, "countdown"), seconds=PATIENCE_SECONDS)
        handle = (await client.call_tool("countdown", {"seconds": 2})).structured_content
        asking = {"execution_id": handle["execution_id"], "wait_seconds": 50}
        shown = (await client.call_tool("get_execution_status", asking)).structured_content
    assert handle["state"] == "running"
    assert (shown["state"], shown["output"]["seconds"]) == ("completed", 2)


def test_a_process_that_stands_in_lists_every_source_at_its_start(start, countdown):
    """A1.1, E8: and says on standard error that it does a worker's work."""
    process = start()
    (run,) = wait_until(lambda: DiscoveryRun.objects.exclude(outcome="running"), "the source was listed")
    assert (run.trigger, run.outcome, run.found) == ("start", "succeeded", 8)
    assert ALONE in process.told
    assert process.end() == 0
    assert not WorkerPresence.objects.exists()


@contextmanager
def living_worker() -> Iterator[None]:
    """What a worker says of itself, for the length of the block."""
    ended = threading.Event()

    def live() -> None:
        try:
            while not ended.wait(0.2):
                note_worker()
        finally:
            connection.close()

    note_worker()
    worker = threading.Thread(target=live)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()


def test_where_a_worker_lives_the_process_leaves_the_work_to_it_until_it_is_silent(start, countdown):
    """E8: then it takes over, and gives way as soon as there is a worker again."""
    with living_worker():
        process = start()
        execution = call(process, 1)
        wait_until(lambda: not read(execution).lease_holder, "its call has let go of it")
        assert ALONE not in process.told
    let_pass(SILENCE)
    wait_until(lambda: read(execution).succeeded, "it is followed to its end")
    assert ALONE in process.told
    with living_worker():
        wait_until(lambda: TAKEN_OVER in process.told, "it notices the worker")


@pytest.mark.parametrize("fate", ["killed", "frozen"])
def test_the_runs_of_a_process_that_is_killed_or_frozen_are_followed_by_another_one(start, countdown, fate):
    """B8, E8: of two that could, one stands in. A frozen one that goes on finds out that it is not needed."""
    first, second = start(), start()
    execution = call(first, 2)
    first.process.send_signal(signal.SIGKILL if fate == "killed" else signal.SIGSTOP)
    expire_lease(execution)
    let_pass(SILENCE)

    wait_until(lambda: read(execution).succeeded, "the other one follows it")

    assert ALONE in second.told
    if fate == "frozen":
        first.process.send_signal(signal.SIGCONT)
        wait_until(lambda: TAKEN_OVER in first.told, "the first one finds that out")
    assert WorkerPresence.objects.count() == 1


def test_a_listing_that_is_under_way_when_the_process_ends_keeps_nobody_from_listing(
    start, transactional_db, wire_engine
):
    """B8: its lease is given back, and standard input that is closed ends the process at once."""
    gate = Gate(replies(200, []))
    wire_engine.on_listing = gate
    source = make_source(base_url=wire_engine.base_url)
    process = start()
    gate.wait_for_request()
    assert process.end() == 0
    assert Source.objects.get(pk=source.pk).refresh_lease_expires_at is None
    gate.open()
