"""The card of runs of each real engine, in a chat: from start to end, cancelled in the card, and failed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cards.fixtures import OpenChat, browser, in_a_browser, node
from tests.e2e.cards.hosts import Chat, Host, running_host
from tests.e2e.product import IMPATIENT, Product, Rest, place_for_one, started
from tests.e2e.test_cards_in_hosts import check_the_only_context, start
from tests.e2e.test_temporal import Engine, engine
from tests.e2e.webdriver import RealBrowser
from tests.engines.job_engines.servers import Servers, job_engines
from tests.engines.prefect.server import AUTH, PrefectServer, prefect
from tests.engines.restate.server import TOKEN, RestateServer, restate
from tests.engines.temporal.definitions import definitions

__all__ = ["browser", "engine", "job_engines", "node", "prefect", "restate"]
# Servers and a product start first, and each run takes some seconds.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400), in_a_browser]

SLOW_SECONDS = 120.0
Call = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with place_for_one(tmp_path_factory.mktemp("product")) as place, started(place | IMPATIENT) as running:
        running.wait_until_up()
        yield running


@pytest.fixture(scope="module")
def rest(product: Product) -> Rest:
    return Rest(product, product.manage("create_mcp_token", "reader", "--scope", "catalogue:admin"))


@pytest.fixture(scope="module")
def host(product: Product, node: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    token = product.manage("create_mcp_token", "chat")
    with running_host(product.url, token, tmp_path_factory.mktemp("host")) as running:
        yield running


@pytest.fixture
def chat(browser: RealBrowser, host: Host) -> Iterator[OpenChat]:
    yield lambda **options: Chat(browser, host, **options)
    browser.leave_frames()
    browser.open("about:blank")


def add(product: Product, name: str, kind: str, config: dict[str, Any], *options: str) -> None:
    product.add_source(name, kind, config, *options)
    product.manage("enable_workflows", "--source", name, "--all", "--yes")


@pytest.fixture(scope="module")
def of_temporal(product: Product, engine: Engine) -> None:
    add(product, "temporal", "temporal", {"host_port": engine.address, "definitions": definitions()})


@pytest.fixture(scope="module")
def of_prefect(product: Product, prefect: PrefectServer) -> Iterator[None]:
    add(product, "prefect", "prefect", {"base_url": prefect.base_url}, "--secret", f"auth_string={AUTH}")
    yield
    prefect.cancel_everything()


@pytest.fixture(scope="module")
def of_restate(product: Product, restate: RestateServer) -> None:
    add(product, "restate", "restate", {**restate.addresses()}, "--secret", f"token={TOKEN}")


@pytest.fixture(scope="module")
def of_job_engines(product: Product, job_engines: Servers) -> None:
    for preset, server in job_engines.items():
        secrets = [f"--secret=password={server.settings['password']}"] if server.settings else []
        config = {"preset": preset, "base_url": server.base_url, "request_timeout_seconds": 60}
        config |= {name: value for name, value in server.settings.items() if name != "password"}
        add(product, preset, "http_job", config, *secrets)


def see_three_runs(
    chat: Callable[..., Chat],
    rest: Rest,
    *,
    ends: Call,
    words: str,
    lasts: Call,
    fails: Call,
    why: str,
    done: Path | None = None,
) -> None:
    """`done`: the file for which the run that ends waits."""
    page = chat()
    execution_id = start(page, *ends)
    if done is not None:
        done.touch()
    page.wait_for_text("completed", words, seconds=SLOW_SECONDS)
    check_the_only_context(page, execution_id, "completed")
    assert page.complaints() == []

    page = chat()
    execution_id = start(page, *lasts)
    page.wait_for_text("running", seconds=SLOW_SECONDS)
    page.press("Cancel the run")
    page.press("Yes, cancel it")
    page.wait_for_state("Cancelled", seconds=SLOW_SECONDS)
    assert rest.execution(execution_id)["state"] == "cancelled"
    assert page.complaints() == []

    page = chat()
    page.call(*fails)
    page.wait_for_text("failed", why, seconds=SLOW_SECONDS)
    assert page.complaints() == []


def test_temporal(chat, rest, of_temporal):
    see_three_runs(
        chat,
        rest,
        ends=("Later", {"seconds": 6}),
        words="slept",
        lasts=("Lasting", {}),
        fails=("Fail", {}),
        why="no black tea is left",
    )


def test_prefect(chat, rest, of_prefect):
    see_three_runs(
        chat,
        rest,
        ends=("last_long", {"seconds": 6, "steps": 2}),
        words="steps",
        lasts=("last_long", {"seconds": 600}),
        fails=("fail_always", {"words": "The tea went cold."}),
        why="the tea went cold.",
    )


def test_restate(chat, rest, of_restate):
    see_three_runs(
        chat,
        rest,
        ends=("Orders_last", {"input": 6}),
        words="done",
        lasts=("Approval_run", {"order_id": "A20"}),
        fails=("Orders_fail", {"input": "The tea went cold."}),
        why="the tea went cold.",
    )


@pytest.mark.timeout(900)
def test_airflow(chat, rest, of_job_engines, tmp_path):
    done = tmp_path / "done"
    see_three_runs(
        chat,
        rest,
        ends=("last", {"until": str(done)}),
        words=str(done),
        lasts=("last", {"until": str(tmp_path / "never")}),
        fails=("fail", {"words": "The kettle is empty."}),
        why="the kettle is empty.",
        done=done,
    )


@pytest.mark.timeout(900)
def test_dagster(chat, rest, of_job_engines, tmp_path):
    done = tmp_path / "done"

    def steep(until: Path) -> Call:
        return "steep_tea", {"ops": {"wait": {"config": {"until": str(until)}}}}

    see_three_runs(
        chat,
        rest,
        ends=steep(done),
        words="completed",
        lasts=steep(tmp_path / "never"),
        fails=("spill_tea", {}),
        why="the tea went cold.",
        done=done,
    )
