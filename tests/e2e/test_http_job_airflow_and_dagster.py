"""Airflow's DAGs and Dagster's jobs through the product's MCP endpoint, the engines' death included."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.e2e.line import Line, survive
from tests.e2e.product import IMPATIENT, Product, Rest, place_for_one, started
from tests.e2e.test_clients import client_of_2026, text_of
from tests.e2e.test_prefect import answer_what_it_asks, begin, call, retry_from_the_failed_step, until
from tests.engines.job_engines.servers import (
    AirflowServer,
    Servers,
    job_engines,
)

__all__ = ["job_engines"]
# Two servers and a product start first, and each run takes some seconds.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def line(job_engines: Servers) -> Iterator[Line]:
    """To Airflow."""
    airflow = job_engines["airflow"]

    def start() -> None:
        airflow.start()
        airflow.wait()

    line = Line(airflow.port, airflow.kill, start)
    line.open()
    yield line
    line.close()


@pytest.fixture(scope="module")
def product(job_engines: Servers, line: Line, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """One whose administrator has named both engines, their addresses and the login, and nothing else."""
    with place_for_one(tmp_path_factory.mktemp("product")) as place, started(place | IMPATIENT) as running:
        running.wait_until_up()
        for preset, server in job_engines.items():
            secrets = [f"--secret=password={server.settings['password']}"] if server.settings else []
            address = f"http://127.0.0.1:{line.port}" if preset == "airflow" else server.base_url
            config = {"preset": preset, "base_url": address, "request_timeout_seconds": 60}
            config |= {name: value for name, value in server.settings.items() if name != "password"}
            running.add_source(preset, "http_job", config, *secrets)
            running.manage("enable_workflows", "--source", preset, "--all")
        yield running


@pytest.fixture(scope="module")
def rest(product: Product) -> Rest:
    return Rest(product, product.manage("create_mcp_token", "reader", "--scope", "catalogue:admin"))


@pytest.fixture
def airflow(job_engines: Servers) -> Iterator[AirflowServer]:
    server = job_engines["airflow"]
    assert isinstance(server, AirflowServer)
    yield server
    server.fail_everything()


async def test_results_failures_and_progress_reach_the_agent(product, airflow, tmp_path):
    """A2.2, A2.3, A2.4, A7.3: of runs of both engines at once, each with what it has to say."""
    done = tmp_path / "done"
    async with client_of_2026(product) as client:

        async def last() -> list[str | None]:
            heard = asyncio.Event()
            messages: list[str | None] = []

            async def note(value: float, total: float | None, message: str | None) -> None:
                messages.append(message)
                if message == "wait":
                    heard.set()

            calling = asyncio.create_task(
                client.call_tool("last", {"until": str(done)}, progress_callback=note)
            )
            await heard.wait()
            done.touch()
            result = await calling
            assert result.structured_content == {"until": str(done)}
            return messages

        cups = {"ops": {"brew": {"config": {"cups": 3}}}}
        (order, _), (failure, _), (brewed, _), messages = await asyncio.gather(
            call(client, "place_order", {"order_id": "A17", "cups": 4}),
            call(client, "fail", {"words": "The kettle is empty."}),
            call(client, "brew_tea", cups),
            last(),
        )
        refused = await client.call_tool("place_order", {"order_id": "A18", "cups": 0})
    assert order.structured_content == {"order_id": "A17", "cups": 4, "milk": None, "water": "hot"}
    assert failure.is_error
    assert "The kettle is empty." in text_of(failure)
    assert (brewed.structured_content or {})["assets"][0]["metadata"][1] == {"label": "cups", "intValue": 3}
    assert "wait" in messages
    assert refused.is_error


async def test_a_human_task_of_airflow_takes_the_answer(product, rest, airflow):
    """A8.2."""
    async with client_of_2026(product) as client:
        execution = await begin(client, "ask", {})
    ended = await answer_what_it_asks(rest, execution, {"_options": "Approve"})
    assert "Approve" in str(ended["output"])


async def test_answers_outlive_the_death_of_airflow_and_arrive_once(product, rest, airflow, line):
    """A8.2, A7.2: one has arrived, one is on its way, one is given while Airflow is away."""
    async with client_of_2026(product) as client:
        runs = [await begin(client, "ask", {}) for _ in range(3)]
    told = {"_options": "Approve"}
    ended = await asyncio.to_thread(
        survive, rest, line, runs, told, lambda run: f"PATCH /api/v2/dags/ask/dagRuns/{run}".encode()
    )
    assert [one["output"]["chosen_options"] for one in ended] == [["Approve"]] * 3


async def test_a_failed_dag_or_job_goes_on_from_its_failed_step_when_it_is_retried(
    product, rest, airflow, tmp_path
):
    """A7.2: as an execution of its own; for Dagster it is another run, too."""
    folders = [tmp_path / name for name in ("dag", "job")]
    for folder in folders:
        folder.mkdir()
    dag, job = ({"folder": str(folder)} for folder in folders)
    ops = {"ops": {name: {"config": job} for name in ("one", "two", "three")}}
    async with client_of_2026(product) as client:
        cleared, executed = await asyncio.gather(
            retry_from_the_failed_step(client, rest, "take_steps", dag, folders[0]),
            retry_from_the_failed_step(client, rest, "take_three_steps", ops, folders[1]),
        )
    assert cleared["output"] == "three" and cleared["is_same_run"]
    assert executed["output"]["steps"] == ["three"] and not executed["is_same_run"]


async def test_a_run_outlives_the_death_of_airflow(product, rest, airflow, line, tmp_path):
    """A1.4, A7.2: API server, scheduler and task are killed. Airflow tries the task again when it is back,
    and the execution is followed to its result."""
    done = tmp_path / "done"
    async with client_of_2026(product) as client:
        execution = await begin(client, "last", {"until": str(done)})
        await until(rest, execution, progress_message="wait")
        await asyncio.to_thread(line.kill)
        told = await client.call_tool("get_execution_status", {"execution_id": execution})
        assert (told.structured_content or {})["state"] == "running"
        assert (await client.list_tools()).tools
        await asyncio.to_thread(line.start)
        done.touch()
        ended = await until(rest, execution, state="completed")
        assert ended["output"] == {"until": str(done)}
