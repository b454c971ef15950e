"""What holds for every stream of notifications: how many there may be, what they cost, what ends them."""

import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from catalogue import exposure
from catalogue.models import Workflow
from executions import change_feed as executions_watching
from executions.models import Execution, State
from mcp_bridge import notifications
from mcp_bridge.bearers import forget_bearers
from mcp_bridge.models import AccessToken
from mcp_bridge.tokens import create_token
from tests import plain_http
from tests.executions.engines import in_thread, until, wait_until
from tests.factories import make_workflow
from tests.mcp_bridge.conftest import McpServer
from tests.mcp_bridge.database import in_database
from tests.mcp_bridge.listening import PATIENCE_SECONDS, TOOLS, Curator, Stream, change_stream, listening
from tests.mcp_bridge.other_process import other_process
from tests.mcp_bridge.test_tasks import owned

pytestmark = pytest.mark.usefixtures("quick_news")

__all__ = ["other_process"]

Open = Callable[[McpServer, str], AbstractAsyncContextManager[Stream]]


@asynccontextmanager
async def subscription(server: McpServer, token: str) -> AsyncIterator[Stream]:
    """One that is acknowledged, of a list."""
    async with listening(server, token, toolsListChanged=True) as stream:
        assert await stream.honoured() == {"toolsListChanged": True}
        yield stream


@asynccontextmanager
async def get_stream(server: McpServer, token: str) -> AsyncIterator[Stream]:
    """One that has begun."""
    async with change_stream(server, token) as stream:
        assert stream.response.status_code == 200
        assert (await stream.line()).startswith("retry:")
        yield stream


def revoke() -> None:
    AccessToken.objects.filter(name="agent").update(revoked_at=timezone.now())
    forget_bearers()


def expire() -> None:
    AccessToken.objects.filter(name="agent").update(expires_at=timezone.now() - timedelta(seconds=1))
    forget_bearers()


@pytest.mark.parametrize("end_token", [revoke, expire])
@pytest.mark.databases("mcp_bridge.notifications")
async def test_the_streams_of_a_token_end_with_it(mcp_server, token, end_token):
    """Also idle ones: the subscription in due form, the other by being closed. Those of others go on."""
    other = (await in_database(create_token)(name="other"))[1]
    async with (
        subscription(mcp_server, token) as subscribed,
        get_stream(mcp_server, token) as got,
        subscription(mcp_server, other) as others,
    ):
        await in_thread(end_token)
        assert await subscribed.ends()
        assert await got.is_cut_off()
        await in_database(make_workflow)()
        assert await others.news() == TOOLS


@pytest.mark.parametrize("opened", [subscription, get_stream])
async def test_a_caller_has_a_bounded_number_of_streams_of_either_kind(
    mcp_server, token, monkeypatch, opened
):
    """The one too many is refused with what to do; one that ends makes room for another."""
    monkeypatch.setattr(notifications, "MOST_STREAMS", 1)
    other = (await in_database(create_token)(name="other"))[1]
    async with opened(mcp_server, token), opened(mcp_server, other):
        async with listening(mcp_server, token, toolsListChanged=True) as stream:
            answer = await _answer(stream)
            assert (stream.response.status_code, answer["error"]["code"]) == (400, -32600)
            assert "This token already has 1 open notification streams" in answer["error"]["message"]
        async with change_stream(mcp_server, token) as stream:
            answer = await _answer(stream)
            assert (stream.response.status_code, answer["error"]["code"]) == (429, -32600)
            assert int(stream.response.headers["retry-after"]) > 0
    await until(lambda: not exposure._watchers, "that they were closed is noticed")
    async with opened(mcp_server, token):
        pass


async def _answer(stream: Stream) -> dict[str, Any]:
    await stream.response.aread()
    answer: dict[str, Any] = stream.response.json()
    return answer


@pytest.mark.parametrize("opened", [subscription, get_stream])
async def test_whoever_disconnects_leaves_nothing_behind(mcp_server, token, opened):
    """While nobody listens, nothing is asked of the database."""
    execution = await in_database(lambda: owned(make_workflow(), state=State.RUNNING))()
    async with opened(mcp_server, token), listening(mcp_server, token, str(execution.pk)) as stream:
        await stream.honoured()
        await until(lambda: executions_watching._watchers, "the execution is watched")
        await until(lambda: exposure._watchers, "the catalogue is watched")
    await until(lambda: not executions_watching._watchers, "no execution is watched any more")
    await until(lambda: not exposure._watchers, "nor is the catalogue")


async def test_many_who_listen_share_one_query_per_look(mcp_server, token, settings, caplog):
    """Idle ones, of several tokens and both kinds; the looks at the tokens are shared as well."""
    others = [(await in_database(create_token)(name=f"other {number}"))[1] for number in range(5)]
    settings.DEBUG = True
    async with contextlib.AsyncExitStack() as opened:
        for each in [*others] * 4:
            await opened.enter_async_context(subscription(mcp_server, each))
            await opened.enter_async_context(get_stream(mcp_server, token if each == others[0] else each))
        with caplog.at_level(logging.DEBUG, "django.db.backends"):
            await until(lambda: len(_queries(caplog, "catalogue_revision")) >= 6, "there were some looks")
            await until(lambda: _queries(caplog, "mcp_bridge_accesstoken"), "the tokens were looked at")
            asked = _queries(caplog, "SELECT")
    assert len(asked) < 40, "more queries than streams in six looks or more"


def _queries(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [line for line in caplog.messages if "SELECT" in line and text in line]


async def test_a_change_by_one_process_is_told_by_another(other_process, mcp_server, token):
    """Over both kinds of stream; both processes serve the new list by then."""
    await in_database(make_workflow)(name="pay")
    async with (
        subscription(other_process.server, token) as subscribed,
        get_stream(other_process.server, token) as got,
    ):
        curator = await in_thread(Curator, mcp_server)
        await in_thread(lambda: curator.change("workflows/pay", title="Pay!"))
        assert await subscribed.news() == TOOLS
        assert await got.untagged() == TOOLS


async def test_a_server_that_shuts_down_ends_its_streams(other_process, token):
    """At once, not when it is killed; a subscription is told so."""
    assert await in_database(Workflow.objects.count)() == 0
    async with (
        subscription(other_process.server, token) as subscribed,
        get_stream(other_process.server, token) as got,
    ):
        other_process.process.terminate()
        assert await subscribed.ends()
        assert await got.is_cut_off()
    assert await in_thread(lambda: other_process.process.wait(PATIENCE_SECONDS)) in (0, -15)


@pytest.mark.parametrize("other_process", [4], indirect=True, ids=["with time for answers"])
def test_a_call_on_a_stream_is_answered_with_its_execution_as_its_process_ends(other_process, token, source):
    """Clients of the versions with a handshake get every answer on a stream; it ended with nothing on it."""
    headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
    params = {"name": "countdown", "arguments": {"seconds": 60}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(
            plain_http.post, f"{other_process.server.base_url}/mcp", json=call, headers=headers, timeout=60
        )
        wait_until(lambda: Execution.objects.filter(state=State.RUNNING), "the run has started")
        other_process.process.send_signal(signal.SIGTERM)
        text = answer.result().text
    assert str(Execution.objects.get().pk) in text and "is still running" in text
