"""A connector that another package brings: built, installed and used as an operator would."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.product import Product, Rest, place_for_one, started, wait_until
from tests.e2e.test_clients import client_of_2026
from tests.processes import ROOT

PACKAGE = ROOT / "examples" / "connector-package"
FUNCTIONS = {"jobs.count_words": "Counts the words of a text.", "jobs.keep_watch": "Watches for a while."}
PATIENCE_SECONDS = 60.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, installed from a wheel that its own build backend makes."""
    folder = tmp_path_factory.mktemp("site")
    quietly = ["--quiet", "--disable-pip-version-check", "--no-index"]
    install = [sys.executable, "-m", "pip", "install", *quietly, "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(folder), str(PACKAGE)], check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def rq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The engine of the package's own tests."""
    spec = importlib.util.spec_from_file_location("rq_engine", PACKAGE / "tests" / "engine.py")
    assert spec is not None and spec.loader is not None
    engine = sys.modules["rq_engine"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    with engine.running_rq(tmp_path_factory.mktemp("rq")) as running:
        yield running
    del sys.modules["rq_engine"]


@pytest.fixture(scope="module")
def product(site: Path, rq: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    config = {"host": "127.0.0.1", "port": rq.port, "functions": FUNCTIONS}
    with rq.redis as redis, place_for_one(tmp_path_factory.mktemp("product")) as place:
        password = redis.get_connection_kwargs()["password"]
        more = {"PYTHONPATH": str(site), "RQ_PASSWORD": password, "CATALOGUE_INLINE_WAIT": "2"}
        with started(place | more) as running:
            running.wait_until_up()
            running.add_source("queue", "rq", config, "--secret-env", "password=RQ_PASSWORD")
            running.manage("enable_workflows", "--source", "queue", "--all")
            yield running


def test_the_kind_and_its_settings_are_known(product):
    """B10: by installing the package, without a change here."""
    rest = Rest(product, product.manage("create_mcp_token", "script", "--scope", "catalogue:admin"))
    kind = rest.get("/connectors/rq/")
    assert (kind["label"], kind["problem"]) == ("RQ (Redis Queue)", "")
    assert kind["secret_settings"] == ["password"]
    assert kind["config_schema"]["required"] == ["host", "functions"]
    assert rest.get("/sources/queue/")["health"]["state"] == "ok"


async def test_its_workflows_are_discovered_run_and_cancelled(product, rq):
    """A1.1, A2.3, A7.5: as those of the built-in kinds."""
    async with client_of_2026(product) as client:
        tools = {tool.name: tool.description for tool in (await client.list_tools()).tools}
        counted = await client.call_tool("count_words", {"text": "one two three"})
        watching = await client.call_tool("keep_watch", {"seconds": 600})
        execution_id = watching.structured_content["execution_id"]
        await client.call_tool("cancel_execution", {"execution_id": execution_id})

        def ended() -> Any:
            rest = Rest(product, product.token)
            return rest.execution(execution_id)["state"] == "cancelled"

        await asyncio.to_thread(wait_until, ended, PATIENCE_SECONDS)
    assert (tools["count_words"] or "").startswith("Counts the words of a text.")
    assert counted.structured_content == {"words": 3}
    assert rq.number_of_started_jobs() == 0


def test_its_own_tests_hold_it_to_the_contract(site):
    """B10: the contract is part of the product, for connectors from elsewhere too."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "PYTEST_"))}
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=PACKAGE,
        env=kept | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout[-4000:] + outcome.stderr[-2000:]
