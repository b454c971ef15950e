"""How long a list of tools is kept, what makes a new one, and what happens when none can be made."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from django.db import connection

from access.callers import Caller
from catalogue.actions.workflows import override_workflow
from catalogue.exposure import ExposedCatalogue, confirmed_catalogue
from catalogue.models import Revision, Toolset
from identity.models import AccessToken
from identity.tokens import Access
from mcp_bridge.tool_lists import MAX_VIEWS, ToolLists
from tests import plain_http
from tests.factories import make_workflow
from tests.mcp_bridge.conftest import QUICKER, McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.test_endpoint import modern

pytestmark = pytest.mark.databases("mcp_bridge.tool_lists")

MAX_STALE_SECONDS = 1.0
PATIENCE_SECONDS = 20.0
VERSION = "2026-07-28"
SCOPES = frozenset({"workflows:read", "workflows:run"})


@pytest.fixture
def client(token: str) -> Iterator[httpx2.Client]:
    _, headers = modern("tools/list")
    headers |= {
        "authorization": f"Bearer {token}",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
    }
    with plain_http.Client(headers=headers, timeout=20) as opened:
        yield opened


def ask(server: McpServer, client: httpx2.Client) -> httpx2.Response:
    return client.post(server.url, json=modern("tools/list")[0])


def shows(answer: httpx2.Response, name: str) -> bool:
    return name in [tool["name"] for tool in answer.json()["result"]["tools"]]


@pytest.mark.usefixtures("quick_news")
def test_a_change_is_seen_by_whoever_asks_a_second_later(mcp_server, client):
    """The first request after a quiet second, too, which has nobody before it to have a new list made."""
    make_workflow(name="before")
    assert shows(ask(mcp_server, client), "before")
    make_workflow(name="after")
    time.sleep(MAX_STALE_SECONDS / QUICKER)
    assert shows(ask(mcp_server, client), "after")


@contextmanager
def broken_database(*tables: str) -> Iterator[None]:
    """Every query of these tables fails, on every connection of whatever process."""
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            for table in tables:
                cursor.execute(f"ALTER TABLE {table}_away RENAME TO {table}")


@pytest.mark.parametrize("lost", [Revision, AccessToken])
def test_without_the_database_requests_are_refused_cleanly_and_then_served_again(mcp_server, client, lost):
    """What is known may be served for a moment; after that, there is an error that says what to do."""
    make_workflow(name="report")
    assert shows(ask(mcp_server, client), "report")
    deadline = time.monotonic() + PATIENCE_SECONDS
    with broken_database(lost._meta.db_table):
        while (refused := ask(mcp_server, client)).status_code == 200:
            assert shows(refused, "report")
            assert time.monotonic() < deadline, "it went on to serve what it cannot know"
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        error = refused.json()["error"]
        assert (error["code"], "The catalogue is not ready" in error["message"]) == (-32603, True)
    assert shows(ask(mcp_server, client), "report")


class Making:
    """Lists outside of any server, which count how often one was made."""

    def __init__(self) -> None:
        self.made = 0
        self.lists = ToolLists({}, self._count)

    def _count(self, _: ExposedCatalogue) -> None:
        self.made += 1

    async def ask(self, slug: str | None = None) -> bytes:
        access = Access(Caller(key="token:1", name="agent", toolset=slug), SCOPES)
        return await self.lists.page_json(access, VERSION, None)


async def test_many_requests_at_once_have_a_list_made_once():
    await in_database(make_workflow)(name="report")
    making = Making()
    pages = await asyncio.gather(*(making.ask() for _ in range(50)))
    assert (making.made, len(set(pages))) == (1, 1)


async def test_a_list_is_made_anew_only_when_something_has_changed():
    workflow = await in_database(make_workflow)(name="report")
    making = Making()
    first = await making.ask()
    await in_database(confirmed_catalogue)()
    assert await making.ask() == first
    await in_database(override_workflow)(workflow, description_override="Another one.")
    await in_database(confirmed_catalogue)()
    assert b"Another one." in await making.ask()
    assert making.made == 2


async def test_only_so_many_lists_are_kept_however_many_toolsets_there_are():
    slugs = [f"set-{number}" for number in range(MAX_VIEWS + 1)]
    await in_database(Toolset.objects.bulk_create)([Toolset(slug=slug) for slug in slugs])
    making = Making()
    for slug in slugs:
        await making.ask(slug)
    assert making.made == len(slugs)
    await making.ask(slugs[-1])
    assert making.made == len(slugs)
    await making.ask(slugs[0])
    assert making.made == len(slugs) + 1
