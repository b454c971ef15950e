"""What a curator does in the admin, and how soon the agents of the running product notice."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client, MCPError

from tests.e2e.browser import Browser
from tests.e2e.product import Product, Rest, wait_until
from tests.e2e.test_clients import client_of_2026

pytestmark = pytest.mark.e2e

NOTICED_SECONDS = 1.0
TOOL = "date_range"
YEAR = {"start": "2026-01-01", "end": "2026-12-31"}
REFUSED = "(401 Unauthorized: The API key is not the one this engine was started with.)"


@pytest.fixture(scope="module")
def browser(product: Product) -> Iterator[Browser]:
    """Somebody who has logged in as the admin of the first start."""
    with Browser(product) as browser:
        assert product.password
        assert browser.log_in(product.password).status_code == 302
        yield browser


async def listed(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def wait_until_listed(client: Client, *, shown: bool) -> None:
    deadline = (asked_at := time.monotonic()) + NOTICED_SECONDS
    while (TOOL in await listed(client)) is not shown:
        assert asked_at < deadline, f"{TOOL} {'did not come' if shown else 'stayed'}"
        asked_at = time.monotonic()


async def wait_until_it_works(client: Client) -> None:
    deadline = (asked_at := time.monotonic()) + NOTICED_SECONDS
    while (result := await client.call_tool(TOOL, YEAR)).is_error:
        assert asked_at < deadline, result
        asked_at = time.monotonic()


async def wait_until_nothing_is_unavailable(client: Client) -> None:
    deadline = (asked_at := time.monotonic()) + NOTICED_SECONDS
    while unavailable := await unavailable_sources(client):
        assert asked_at < deadline, unavailable
        asked_at = time.monotonic()


async def test_tool_disabled_in_the_admin_is_gone_within_a_second_and_comes_back_as_soon(
    product: Product, browser: Browser
) -> None:
    """A4.2, A4.4, B4: without a restart, for a client that is connected all the while."""
    row = browser.first_match(f"catalogue/workflow/?q={TOOL}", r'name="_selected_action" value="(\d+)"')

    def run_action(name: str) -> None:
        answer = browser.post("catalogue/workflow/", {"action": name, "_selected_action": row})
        assert answer.status_code == 302

    async with client_of_2026(product) as client:
        assert TOOL in await listed(client)
        try:
            run_action("disable_selected")
            await wait_until_listed(client, shown=False)
            with pytest.raises(MCPError, match=f"Unknown or disabled tool: {TOOL}"):
                await client.call_tool(TOOL, YEAR)
        finally:
            run_action("enable_selected")
        await wait_until_listed(client, shown=True)
        result = await client.call_tool(TOOL, YEAR)
    assert result.structured_content["calendar_days"] == 365


async def test_wrong_key_shows_the_engines_words_and_keeps_the_last_good_list_until_it_is_mended(
    product: Product, rest: Rest, place: dict[str, str], browser: Browser
) -> None:
    """A1.4, A5.1"""
    settings = json.loads((Path(place["CATALOGUE_DATA_DIR"]) / "example-engine.json").read_text())
    source = browser.first_match("catalogue/source/", r'href="/admin/(catalogue/source/\d+/)change/"')

    def save_key(key: str) -> None:
        browser.submit(f"{source}change/", "source_form", {"setting_api_key": key})

    def try_to_refresh() -> str:
        """What "Refresh now" says; nothing while the worker is at it, which tries new settings at once."""
        told = browser.press(f"{source}refresh_now/")
        return "" if "already being refreshed" in told else told

    def refresh() -> str:
        return str(wait_until(try_to_refresh, 10, product.told))

    config = rest.get("/sources/example-engine/")["config"]
    async with client_of_2026(product) as client:
        before = await listed(client)
        try:
            save_key("wrong-key-0123456789")
            told = refresh()
            assert f"the engine rejected the credentials {REFUSED} The last good list is kept." in told
            assert await listed(client) == before
            (unavailable,) = await unavailable_sources(client)
        finally:
            save_key(settings["api_key"])
        assert unavailable["shown"] == "the last good list"
        assert unavailable["reason"] == "The last listing failed (rejected)."
        assert "The last good list is kept." not in refresh()
        await wait_until_it_works(client)
        await wait_until_nothing_is_unavailable(client)
    assert rest.get("/sources/example-engine/")["config"] == config


async def unavailable_sources(client: Client) -> list[dict[str, str]]:
    answer = await client.call_tool("list_workflows", {})
    sources: list[dict[str, str]] = answer.structured_content.get("unavailable_sources", [])
    return sources
