"""Who we are to an API, who gets to know it, and where tools may go."""

import base64
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from loguru import logger

from connectors.errors import Misconfigured, OutcomeUnknown, Unreachable
from connectors.http_tools.connector import HttpConnector
from connectors.http_tools.tool import ToolConfig
from connectors.protocol import RunState
from connectors.testing import closing, everything_told_by
from tests.connectors.calling import run
from tests.connectors.declared_tools import TEXT, connector_of, tool, workflow_of
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.engines.target_answers import CLIENT_ID, CLIENT_SECRET
from tests.engines.target_api import Reply, TargetApi, running_target_api

SECRET = "api-key-0123456789abcdef"


@pytest.fixture
def api() -> Iterator[TargetApi]:
    with running_target_api() as api, http_tool_hosts("127.0.0.1"):
        yield api


@pytest.fixture
def log() -> Iterator[list[str]]:
    """What our own code logs, at every level."""
    lines: list[str] = []
    sink = logger.add(lines.append, level=0)
    yield lines
    logger.remove(sink)


AUTHENTICATIONS: dict[str, dict[str, Any]] = {
    "a key in a header": {"type": "api_key", "in": "header", "name": "X-Key", "key": SECRET},
    "a key in the query": {"type": "api_key", "in": "query", "name": "key", "key": SECRET},
    "a bearer token": {"type": "bearer", "token": SECRET},
    "a user name": {"type": "basic", "username": "Jürgen", "password": SECRET},
}


@pytest.mark.parametrize("way", AUTHENTICATIONS)
async def test_no_credential_shows_wherever_an_api_repeats_it(
    api: TargetApi, way: str, caplog: pytest.LogCaptureFixture, log: list[str]
) -> None:
    """C9, B8: not in the output, the error, the record or the log."""
    authentication = AUTHENTICATIONS[way]
    caplog.set_level("DEBUG")
    leaks = (
        tool("GET", f"{api.base_url}{path}", authentication=authentication) for path in ("/leak", "/leak/400")
    )
    shown = [repr(await run(leak)) for leak in leaks]
    with pytest.raises(Unreachable) as later:
        await run(tool("GET", f"{api.base_url}/leak/429", authentication=authentication))
    with pytest.raises(OutcomeUnknown) as unknown:
        await run(tool("POST", f"{api.base_url}/leak/504", authentication=authentication))
    shown += [everything_told_by(later.value), everything_told_by(unknown.value), caplog.text, *log]
    assert any("/leak" in line for line in log)
    sent = f"{api.last.headers} {api.last.query}"
    basic = base64.b64encode(f"Jürgen:{SECRET}".encode()).decode()
    assert SECRET in sent or basic in sent
    for text in shown:
        assert SECRET not in text
        assert basic not in text


def oauth(api: TargetApi) -> dict[str, Any]:
    return {
        "type": "oauth_client_credentials",
        "token_url": f"{api.base_url}/oauth/token",
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
    }


@pytest.fixture
async def shop(api: TargetApi) -> AsyncIterator[tuple[HttpConnector, ToolConfig]]:
    """A connector that gets tokens by itself, and a tool that changes something."""
    declared = tool("POST", f"{api.base_url}/orders", authentication=oauth(api))
    async with closing(connector_of(declared)) as connector:
        assert isinstance(connector, HttpConnector)
        yield connector, declared


async def test_a_token_is_got_once_and_another_one_when_it_is_refused(
    api: TargetApi, shop: tuple[HttpConnector, ToolConfig]
) -> None:
    """C1.4: a request that was refused at the door was not carried out, so it is sent once more."""
    connector, declared = shop
    for _ in range(2):
        await connector.start(workflow_of(declared), {}, key=uuid4())
    assert api.kept["tokens"] == 1
    api.required_headers = {"authorization": "Bearer the old ones were revoked"}
    started = await connector.start(workflow_of(declared), {}, key=uuid4())
    assert started.snapshot is not None
    assert started.snapshot.state is RunState.COMPLETED
    assert api.kept["tokens"] == 2
    assert len(api.kept["orders"]) == 3


async def test_a_token_that_is_refused_again_ends_the_run(
    api: TargetApi, shop: tuple[HttpConnector, ToolConfig]
) -> None:
    """C8.3: there is no third attempt."""
    connector, declared = shop
    api.tell("POST", "/orders", Reply(401, {"error": "not you"}))
    started = await connector.start(workflow_of(declared), {}, key=uuid4())
    assert started.snapshot is not None
    assert "401 Unauthorized: not you" in started.snapshot.error
    assert len(api.requests("POST", "/orders")) == 2


async def test_a_token_that_is_refused_where_the_result_is_fetched_sends_nothing_twice(
    api: TargetApi,
) -> None:
    """C8.3: a 303 says that the request was carried out, whatever the address that it names answers."""
    to = [
        {"in": "query", "name": name, "value": value}
        for name, value in (("status", 303), ("to", "/status/401"))
    ]
    declared = tool("POST", f"{api.base_url}/redirect", authentication=oauth(api), constants=to)
    snapshot = await run(declared)
    assert snapshot.state is RunState.FAILED
    assert len(api.requests("POST", "/redirect")) == 1


async def test_a_token_url_is_held_to_the_same_addresses_as_the_api(api: TargetApi) -> None:
    """C5.3: it is chosen by whoever declares the tool, too."""
    with running_target_api() as other, http_tool_hosts(f"127.0.0.1:{api.port}"):
        declared = tool("GET", f"{api.base_url}/text", authentication=oauth(other))
        with pytest.raises(Misconfigured, match="CATALOGUE_HTTP_TOOL_HOSTS"):
            await run(declared)
        assert other.arrived == []


async def test_an_address_that_is_not_public_is_not_contacted(api: TargetApi) -> None:
    """C5.3: unless an operator has allowed it."""
    with http_tool_hosts(""), pytest.raises(Misconfigured, match="CATALOGUE_HTTP_TOOL_HOSTS"):
        await run(tool("GET", f"{api.base_url}/text"))
    assert api.arrived == []


async def test_a_tool_never_sets_what_its_sources_key_goes_into(api: TargetApi) -> None:
    """C4.5: also where it was declared for a source without a key."""
    for authentication, declared in (
        ({"api_key_in": "query", "api_key_name": "a"}, tool("GET", f"{api.base_url}/echo", {"a": TEXT})),
        (
            {"api_key_in": "header", "api_key_name": "x-a"},
            tool("GET", f"{api.base_url}/echo", {"a": TEXT}, mappings={"a": {"in": "header", "name": "X-A"}}),
        ),
    ):
        with pytest.raises(Misconfigured, match="which is reserved for the source's key"):
            await run(declared, {"a": "1"}, authentication="api_key", api_key=SECRET, **authentication)
    assert api.arrived == []


@pytest.mark.parametrize(
    ("authentication", "lacks"),
    [
        ("api_key", "API key"),
        ("bearer", "bearer token"),
        ("basic", "user name"),
        ("oauth_client_credentials", "OAuth token URL, OAuth client id, OAuth client secret"),
    ],
)
async def test_credentials_that_nobody_has_entered_yet_are_asked_for(
    api: TargetApi, authentication: str, lacks: str
) -> None:
    """B5: imported tools work once an admin has entered them."""
    declared = tool("GET", f"{api.base_url}/text")
    with pytest.raises(Misconfigured, match=f"The source does not have the {lacks}"):
        await run(declared, authentication=authentication)
    async with closing(connector_of(declared, authentication=authentication)) as connector:
        assert lacks in (await connector.check()).message
    assert api.arrived == []


async def test_a_check_says_what_it_proved_and_what_not(api: TargetApi) -> None:
    """B9: an API without a status page can only be reached."""
    plain, keyed = tool(endpoint=api.base_url), tool(endpoint=api.base_url, authentication=oauth(api))
    async with closing(connector_of(plain)) as connector:
        told = await connector.check()
        assert (told.ok, told.message) == (True, f"{api.base_url} can be reached: it answered 200.")
    async with closing(connector_of(keyed)) as connector:
        told = await connector.check()
        assert told.ok
        assert "a token was obtained, and it answered 200. Only a tool call shows" in told.message
