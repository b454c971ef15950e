"""`GET /mcp`: what clients of the handshake era are told of, without a session."""

import httpx2
import pytest

from catalogue.models import Workflow
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import create_token
from mcp_bridge.transports import http as stream_module
from tests import plain_http
from tests.executions.engines import in_thread
from tests.factories import make_source, make_toolset, make_workflow
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.listening import PROMPTS, RESOURCES, TOOLS, Curator, change_stream, noticed

pytestmark = pytest.mark.usefixtures("quick_news")

EVENT_STREAM = {"accept": "text/event-stream"}


@pytest.fixture
def workflow(transactional_db: None) -> Workflow:
    return make_workflow(make_source("bank"), name="pay")


@pytest.fixture
def curator(mcp_server: McpServer) -> Curator:
    return Curator(mcp_server)


def request(server: McpServer, method: str, token: str, **headers: str) -> httpx2.Response:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    return plain_http.request(method, server.url, headers=headers, timeout=20)


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", ""])
async def test_each_list_that_has_changed_is_told(mcp_server, token, workflow, curator, version):
    """In every version of the era; a request that names none is of 2025-03-26."""
    async with change_stream(mcp_server, token, version=version) as stream:
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"] == "text/event-stream"
        assert "mcp-session-id" not in stream.response.headers
        assert await stream.line() == f"retry: {stream_module.RECONNECT_MILLISECONDS}"
        await in_thread(lambda: curator.change("workflows/pay", offered_as_prompt=True))
        assert await stream.untagged() == PROMPTS
        await in_thread(lambda: curator.change("sources/bank", enabled=False))
        told = [await stream.untagged() for _ in range(3)]
        assert sorted(told) == sorted((TOOLS, PROMPTS, RESOURCES))


async def test_what_the_caller_cannot_see_is_not_told(mcp_server, token, workflow):
    """The toolset of the address and the scopes decide, as for what it lists."""
    other = await in_database(make_workflow)(name="other")
    await in_database(make_toolset)("finance", picked=[workflow])
    async with change_stream(mcp_server, token, toolset="finance") as stream:
        await stream.line()
        await in_database(_disable)(other)
        await noticed()
        await in_database(_offer)(workflow)
        assert await stream.untagged() == PROMPTS


def _disable(workflow: Workflow) -> None:
    workflow.enabled = False
    workflow.save()


def _offer(workflow: Workflow) -> None:
    workflow.offered_as_prompt = True
    workflow.save()


async def test_comments_keep_an_idle_stream_open(mcp_server, token, monkeypatch):
    monkeypatch.setattr(stream_module, "PING_SECONDS", 0.02)
    async with change_stream(mcp_server, token) as stream:
        assert (await stream.line()).startswith("retry:")
        assert [await stream.line() for _ in range(3)] == [": ping"] * 3


@pytest.mark.parametrize("version", ["2026-07-28", "2099-01-01", "nonsense"])
def test_other_eras_have_no_such_stream(mcp_server, token, version):
    """The 2026-07-28 revision has `subscriptions/listen`, and 405 for everything but POST."""
    answer = request(mcp_server, "GET", token, mcp_protocol_version=version, **EVENT_STREAM)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("accept", ["application/json", "*/*", "", "text/event-stream;q=0, */*"])
def test_who_does_not_take_an_event_stream_gets_none(mcp_server, token, accept):
    """A browser or a probe would wait for its end."""
    answer = request(mcp_server, "GET", token, accept=accept)
    assert answer.status_code == 406
    assert "text/event-stream" in answer.json()["error"]["message"]


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"])
def test_other_methods_are_not_allowed(mcp_server, token, method):
    """Without sessions there is none to end."""
    answer = request(mcp_server, method, token, **EVENT_STREAM)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


def test_only_who_is_let_in_gets_a_stream(mcp_server, token):
    """By the same checks as every request: token, toolset, host and origin."""
    assert request(mcp_server, "GET", "", **EVENT_STREAM).status_code == 401
    assert request(mcp_server, "GET", "wfc_wrong", **EVENT_STREAM).status_code == 401
    assert request(mcp_server, "GET", token, origin="https://evil.example", **EVENT_STREAM).status_code == 403
    assert request(mcp_server, "GET", token, host="evil.example", **EVENT_STREAM).status_code == 421
    headers = EVENT_STREAM | {"authorization": f"Bearer {token}"}
    missing = plain_http.get(mcp_server.toolset_url("nothing"), headers=headers)
    assert missing.status_code == 404


def test_a_token_that_sees_no_list_is_told_that_there_is_no_stream(mcp_server):
    """An empty one would end at once, and its client come back for ever."""
    token, text = create_token(name="without scopes")
    AccessToken.objects.filter(pk=token.pk).update(scopes=[])
    answer = request(mcp_server, "GET", text, **EVENT_STREAM)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
