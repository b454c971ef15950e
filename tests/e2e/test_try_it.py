"""The page to try natural-language requests, with a real browser and no mouse, on the running product."""

from collections.abc import Iterator

import pytest

from tests import plain_http
from tests.e2e.product import Product, place_for_one, started
from tests.e2e.webdriver import BROWSER, DOWN, DRIVER, ENTER, MISSING, SPACE, TAB, RealBrowser, real_browser
from tests.engines.model_server import KEY, MODEL, ModelServer, proposes
from tests.engines.target_api import Reply, TargetApi, running_target_api

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING)]

SECRET = "shop-token-0123456789abcdef"
TRY_IT = "/admin/orchestration/workflowrequest/try/"
WORDS = "**Sent**, says the shop & its *own* API."
SEARCH, FOUND = "[name=find_workflows]", "document.querySelectorAll('#found-workflows input')"
DRY_RUN, RUN, SEND = "#try-form [name=dry_run]", "#try-form [name=run]", "[data-send] [type=submit]"


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer().running() as server:
        yield server


@pytest.fixture(scope="module")
def shop() -> Iterator[TargetApi]:
    with running_target_api(required_headers={"authorization": f"Bearer {SECRET}"}) as api:
        api.tell("GET", "/orders/A-7", Reply(200, {"order": {"id": "A-7", "state": "sent"}}))
        yield api


@pytest.fixture(scope="module")
def product(
    tmp_path_factory: pytest.TempPathFactory, model: ModelServer, shop: TargetApi
) -> Iterator[Product]:
    """One that knows the model, and has an HTTP tool of the shop."""
    with place_for_one(tmp_path_factory.mktemp("try-it")) as place:
        place |= {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL}
        place["CATALOGUE_HTTP_TOOL_HOSTS"] = "127.0.0.1"
        with started(place) as running:
            running.wait_until_up()
            _store_tool(running, shop)
            yield running


def _store_tool(product: Product, shop: TargetApi) -> None:
    token = product.manage("create_mcp_token", "curator", "--scope", "catalogue:admin")
    endpoint, bearer = f"{shop.base_url}/orders/{{order_id}}", {"type": "bearer", "token": SECRET}
    order_id = {"type": "string"}
    tool = {
        "name": "get_order",
        "description": "Reads one order of the shop.",
        "api": {"endpoint": endpoint, "method": "GET", "authentication": bearer},
        "input_schema": {"type": "object", "properties": {"order_id": order_id}, "required": ["order_id"]},
    }
    headers = {"Authorization": f"Bearer {token}"}
    answer = plain_http.post(f"{product.url}/tools", json=tool, headers=headers, timeout=30)
    assert answer.status_code == 201, answer.text


@pytest.fixture(scope="module")
def browser(product: Product, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealBrowser]:
    """Somebody who has logged in."""
    with real_browser(tmp_path_factory.mktemp("browser")) as browser:
        browser.open(f"{product.url}/admin/")
        browser.tab_to("[name=username]")
        assert product.password
        browser.press("admin", TAB)
        browser.tab_to("[name=password]")
        browser.press(product.password, ENTER)
        browser.wait_for("location.pathname === '/admin/'")
        yield browser


@pytest.fixture
def page(browser: RealBrowser, product: Product, shop: TargetApi) -> RealBrowser:
    """The page with instructions and one tool, found by its description and picked."""
    shop.arrived.clear()
    browser.open(f"{product.url}{TRY_IT}")
    browser.tab_to("[name=user_instructions]")
    browser.press("Where is my order A-7?")
    browser.tab_to(SEARCH)
    browser.press("order shop")
    browser.wait_for(f"{FOUND}.length === 1")
    browser.press(DOWN, SPACE)
    browser.wait_for_text("1 picked", within="#picked-count")
    return browser


def called(shop: TargetApi) -> list[str]:
    """What arrived for the tool, apart from checks whether the API is there."""
    return [f"{one.method} {one.target}" for one in shop.arrived if one.target != "/"]


def test_tools_are_searched_and_picked_together(browser, product):
    """C2.3: one press of Tab enters the list, however long it is."""
    browser.open(f"{product.url}{TRY_IT}")
    browser.tab_to(SEARCH)
    browser.press("get_order")
    browser.wait_for(f"{FOUND}.length === 1")
    browser.tab_to("#pick-all-found")
    browser.press(ENTER)
    browser.wait_for_text("1 picked", within="#picked-count")
    browser.tab_to("#pick-none")
    browser.press(ENTER)
    browser.wait_for_text("0 picked", within="#picked-count")
    browser.run(f"document.querySelector({SEARCH!r}).value = ''")
    browser.tab_to(SEARCH)
    browser.press("o")
    browser.wait_for(f"{FOUND}.length >= 1")
    browser.press(DOWN, DOWN, SPACE)
    browser.wait_for_text("1 picked", within="#picked-count")
    browser.tab_to("#pick-none")
    browser.press(TAB, TAB)
    assert browser.run(f"return document.activeElement.matches({DRY_RUN!r})")


def test_a_dry_run_shows_the_exact_request_and_is_then_sent_as_it_was_shown(page, model, shop):
    """C4.4, C4.5, C7.2: with the keyboard alone; the second time the model is not asked what to do."""
    model.script(proposes("get_order", {"order_id": "A-7"}, reason="It reads one order."))
    asked = len(model.asked)
    page.tab_to(DRY_RUN)
    page.press(ENTER)
    page.wait_for_text("Nothing was sent", within="#record")
    shown = page.text("#record")
    assert f"GET {shop.base_url}/orders/A-7" in shown
    assert "It reads one order." in shown and '"order_id": "A-7"' in shown
    assert not called(shop)

    page.tab_to(SEND)
    page.press(ENTER)
    page.wait_for_text("Raw response", within="#record")
    assert called(shop) == ["GET /orders/A-7"]
    assert '"state": "sent"' in page.text("#record")
    assert SECRET not in page.run("return document.documentElement.outerHTML")
    assert len(model.asked) == asked + 1


def test_what_is_seen_to_have_ended_can_be_gone_on_with_before_its_answer_is_there(page, model, shop):
    """C7.7: a busy server has ended the record, and its answer to the browser is on its way."""
    page.run(
        "const ask = window.fetch; window.fetch = async (address, options) => { "
        "const answer = await ask(address, options); "
        "return options.method === 'POST' ? new Promise(() => {}) : answer }"
    )
    model.script(proposes("get_order", {"order_id": "A-7"}))
    page.tab_to(DRY_RUN)
    page.press(ENTER)
    page.wait_for_text("Nothing was sent", within="#record")
    page.tab_to(SEND)
    page.press(ENTER)
    page.wait_for_text("Raw response", within="#record")
    assert called(shop) == ["GET /orders/A-7"]


def test_stages_are_shown_as_they_happen_and_pressing_twice_asks_once(page, model, shop):
    """C7.7: while the model thinks, the page says so; a reload in the middle shows the same request."""
    asked = len(model.asked)
    model.script(model.slow(proposes("get_order", {"order_id": "A-7"})))
    page.tab_to(RUN)
    page.press(ENTER, ENTER, SPACE)
    page.wait_for_text("Choosing tool and arguments …", within="#progress")
    page.wait_for_text("in progress", within="#record .request-stages")
    page.reload()
    page.wait_for_text("Choosing tool and arguments …", within="#progress")
    written = page.run("return document.querySelector('[name=user_instructions]').value")
    assert written == "Where is my order A-7?"
    model.wait_until_asked_slowly()
    model.release()
    page.wait_for_text("Ended: success.", within="#progress")
    assert '"state": "sent"' in page.text("#record")
    assert called(shop) == ["GET /orders/A-7"]
    assert len(model.asked) == asked + 1


def test_the_answer_in_words_stays_text(page, model):
    """C6.1, C6.5: neither HTML nor Markdown."""
    model.script(proposes("get_order", {"order_id": "A-7"}), WORDS)
    page.run("document.querySelector('[name=format_response]').focus()")
    page.press(SPACE)
    page.tab_to(RUN)
    page.press(ENTER)
    page.wait_for_text("Ended: success.", within="#progress")
    assert WORDS in page.text("#record")


def test_what_goes_wrong_is_said_and_the_page_can_be_used_again(page, model, shop):
    """C7.6, C7.7, C8.2."""
    model.script(proposes(None, reason="Nothing here sells bread."))
    page.tab_to(RUN)
    page.press(ENTER)
    page.wait_for_text("Ended: error.", within="#progress")
    shown = page.text("#record")
    assert "Failed at choosing tool and arguments" in shown and "Nothing here sells bread." in shown
    assert not called(shop)

    model.script(proposes("get_order", {"order_id": "A-7"}))
    page.press(ENTER)
    page.wait_for_text('"state": "sent"', within="#record")
    assert called(shop) == ["GET /orders/A-7"]
