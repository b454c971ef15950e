"""A person runs a workflow from its page in a real browser, and sees how it goes without another page."""

from collections.abc import Iterator

import pytest

from tests.e2e.product import Product
from tests.e2e.webdriver import BROWSER, DRIVER, ENTER, MISSING, TAB, RealBrowser, real_browser

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not (DRIVER and BROWSER), reason=MISSING)]

SECONDS = "[id='argument/seconds']"
SELECT_ALL = "document.activeElement.select()"


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


def follow_to_the_end(browser: RealBrowser, *, shows_progress: bool = False) -> None:
    """From the form that was just sent; the page of the execution is never loaded anew."""
    browser.wait_for(
        "/executions.execution.*change/.test(location.pathname) && document.readyState === 'complete'"
    )
    browser.run("window.isTheSamePage = true")
    if shows_progress:
        browser.wait_for("document.querySelector('[role=progressbar][aria-valuenow]')")
    browser.wait_for_text("completed", within="#panel-headline")
    assert browser.run("return window.isTheSamePage")
    browser.wait_for("document.querySelector('#poller:not([hx-get])')")


def test_a_workflow_is_run_seen_to_its_end_and_run_again_with_another_argument(browser, product):
    """Issue 13, 5 and 6: by clicks and keys only."""
    browser.complaints()
    browser.open(f"{product.url}/admin/catalogue/workflow/?q=countdown")
    browser.click("#result_list tbody th a")
    browser.wait_for("document.querySelector('#panel-buttons a')")
    browser.click("#panel-buttons a")
    browser.wait_for_text("seconds", within="label[for='argument/seconds']")
    browser.click(SECONDS)
    # Long enough for a busy machine to open the page while it goes on.
    browser.press("8", ENTER)
    follow_to_the_end(browser, shows_progress=True)
    assert '"seconds": 8' in browser.text("#execution-payloads")

    browser.click("#panel-buttons a")
    browser.wait_for(f"document.querySelector(`{SECONDS}`)?.value === '8'")
    browser.click(SECONDS)
    browser.run(SELECT_ALL)
    browser.press("2", ENTER)
    follow_to_the_end(browser)
    assert '"seconds": 2' in browser.text("#execution-payloads")
    assert "Called by" in (facts := browser.text("#panel-facts")) and " admin" in facts
    assert browser.complaints() == []
