"""The first job of a curator, acted out in a browser. Clicks and keys are counted; typed texts are not."""

import asyncio
from dataclasses import dataclass

import httpx2
import pytest
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client

from catalogue.discovery import refresh_source
from catalogue.models import Toolset, Workflow
from dev.benchmarks._workflows import realistic_definitions
from tests.admin.window import Window
from tests.e2e.simplified_engine import Engine, Fixture
from tests.e2e.webdriver import CONTROL, ENTER, ESCAPE, TAB
from tests.factories import make_source
from tests.mcp_bridge.serving import serving

WORKFLOWS = 528
PICKED, RENAMED = 15, 5  # Picked and renamed: of each department


@dataclass
class Hands:
    """What a person does, with a count."""

    window: Window
    count: int = 0

    def click(self, selector):
        self.count += 1
        self.window.click(selector)

    def follow(self, selector):
        self.count += 1
        self.window.click_through(selector)

    def press(self, *keys):
        self.count += len(keys)
        self.window.browser.press(*keys)

    def press_with_control(self, key):
        self.count += 1
        self.window.browser.press_together(CONTROL, key)

    def follow_key(self, key):
        self.count += 1
        self.window.follow_key(key)

    def type(self, text):
        """In place of what the focused field has."""
        self.window.run("document.activeElement.select()")
        self.window.browser.press(text)


@pytest.fixture
def hands(window):
    window.browser.resize(1280, 800)
    return Hands(window)


@pytest.fixture
def engine():
    """An engine of a company's size, listed by the product."""
    definitions = realistic_definitions(WORKFLOWS)
    fixtures = [
        Fixture(
            name=one["name"],
            description=one["description"],
            input_schema={"type": "object", "properties": {"note": {"type": "string"}}},
            answer=lambda given: given,
        )
        for one in definitions
    ]
    with serving(Engine({one.name: one for one in fixtures}).build_app()) as address:
        source = make_source("erp", base_url=address)
        assert refresh_source(source).found == WORKFLOWS
        yield source


def call(address, token, tool):
    """By the official client."""

    async def connect():
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, trust_env=False)
        async with (
            http,
            streamable_http_client(address, http_client=http) as (read, write, *_),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            names = [one.name for one in (await session.list_tools()).tools]
            return names, await session.call_tool(tool, {"note": "hello"})

    return asyncio.run(connect())


def choose(hands, option):
    """In a select: one click opens it, another one chooses."""
    hands.count += 1
    hands.click(option)


def curate(hands, department, names):
    """Find the named workflows, rename and describe the first ones, and publish them all to a team.

    Returns the new names, and the token that the page shows."""
    window = hands.window
    hands.press("/")
    hands.type(f"name:{','.join(names)}")
    hands.follow_key(ENTER)
    assert window.run("return document.querySelectorAll('#result_list .data-row').length") == len(names)
    hands.press("j", "e")
    renamed = [f"{department}_job_{number}" for number in range(RENAMED)]
    field = "document.activeElement.matches('.edit-row [name=tool_name]')"
    for number, name in enumerate(renamed):
        row = window.browser.wait_for(f"{field} && document.activeElement.closest('tr').id")
        hands.type(name)
        hands.press(TAB, TAB)
        hands.type(f"Does job {number} of the department {department}.")
        hands.press_with_control(ENTER)
        window.browser.wait_for(f"document.querySelector('#{row}.data-row .name')?.innerText == {name!r}")
    window.browser.wait_for(field)
    hands.press(ESCAPE)  # The next one keeps its texts
    window.browser.wait_for("!document.querySelector('.edit-row')")
    hands.click("#action-toggle")
    choose(hands, '[name="action"] option[value="publish_selected"]')
    hands.follow("#changelist-actions button[type=submit]")
    hands.click("#id_title")
    hands.type(department.capitalize())
    hands.click("#id_token_name")
    hands.type(f"{department} agent")
    hands.follow("#publish-button")
    return renamed, window.run("return document.querySelector('#test-call [name=token]').value")


def test_thirty_workflows_of_two_departments_are_curated_and_called_within_sixty_clicks_and_keys(
    hands, engine, settings
):
    """A4.2: from 528 listed workflows to two toolsets, ten of the tools renamed and described."""
    settings.PUBLIC_URL = hands.window.site
    unflagged = Workflow.objects.filter(warning="", resembles="")
    names = list(unflagged.order_by("pk").values_list("tool_name", flat=True))
    departments = {"billing": names[:PICKED], "support": names[100 : 100 + PICKED]}
    hands.window.open("/admin/")
    for department, picked in departments.items():
        hands.follow('#nav-sidebar a[href="/admin/catalogue/workflow/"]')
        if department == "support":
            hands.click("#selection-clear")
        renamed, token = curate(hands, department, picked)
        listed, answer = call(f"{hands.window.site}/mcp/{department}", token, renamed[0])
        assert not answer.is_error
        served = {one.tool_name for one in Workflow.objects.filter(toolsets__slug=department)}
        assert served <= set(listed) and len(served) == PICKED and set(renamed) <= served
    assert Workflow.objects.filter(enabled=True, only_in_toolsets=True).count() == 2 * PICKED
    assert Toolset.objects.count() == 2
    assert hands.count <= 60
