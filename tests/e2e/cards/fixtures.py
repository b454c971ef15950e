"""A product with an engine whose runs cards show, a chat and a browser."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.testing import free_port
from tests.e2e.browser import Browser
from tests.e2e.cards.hosts import Chat, Host, running_host
from tests.e2e.node_tools import node
from tests.e2e.product import IMPATIENT, Product, Rest, place_for_one, started
from tests.e2e.webdriver import BROWSER, DRIVER, MISSING, RealBrowser, real_browser
from tests.processes import listening, running

__all__ = ["browser", "cards_product", "chat", "host", "node", "rest"]

OpenChat = Callable[..., Chat]
in_a_browser = pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING)


@pytest.fixture(scope="module")
def cards_product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """Its workflows are tools at once; one of them waits for approval, and those of an MCP server ask."""
    folder, engine = tmp_path_factory.mktemp("cards"), f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tests.e2e.cards.engine", engine]
    port = free_port()
    asking = [sys.executable, "-m", "tests.engines.asking_server", f"--port={port}", "--era=2026"]
    with (
        running(command, answers_at=f"{engine}/healthz", log=folder / "engine.log"),
        listening(asking, port=port, log=folder / "asking.log"),
        place_for_one(folder / "product") as place,
        started(place | IMPATIENT) as product,
    ):
        product.wait_until_up()
        rest = Rest(product, product.manage("create_mcp_token", "curator", "--scope", "catalogue:admin"))
        rest.post(
            "/sources/", name="shop", kind="simplified", config={"base_url": engine}, new_workflows="exposed"
        )
        rest.post("/sources/shop/refresh/")
        config = {"url": f"http://127.0.0.1:{port}/mcp"}
        rest.post("/sources/", name="asking", kind="mcp", config=config, new_workflows="exposed")
        rest.post("/sources/asking/refresh/")
        rest.patch("/workflows/pay_invoice/", approval_required=True)
        yield product


@pytest.fixture(scope="module")
def rest(cards_product: Product) -> Rest:
    return Rest(
        cards_product, cards_product.manage("create_mcp_token", "looker", "--scope", "catalogue:admin")
    )


@pytest.fixture(scope="module")
def host(cards_product: Product, node: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    token = cards_product.manage("create_mcp_token", "chat")
    with running_host(cards_product.url, token, tmp_path_factory.mktemp("host")) as host:
        yield host


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBrowser]:
    with real_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def chat(browser: RealBrowser, host: Host) -> Iterator[OpenChat]:
    """Opens a page of the host."""
    yield lambda **options: Chat(browser, host, **options)
    browser.leave_frames()
    browser.open("about:blank")


def approve(product: Product, password: str, execution_id: str) -> None:
    """As a person who has signed in, on the page of the admin that the card opens."""
    page = f"executions/approval/{execution_id}/"
    with Browser(product) as approver:
        assert approver.log_in(password).status_code == 302
        seen = re.search(r'name="seen" value="([^"]+)"', approver.get(f"{page}change/"))
        assert seen
        assert approver.post(f"{page}approve/", {"seen": seen[1]}).status_code == 302
