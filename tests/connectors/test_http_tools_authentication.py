"""Who we are to an API, who gets to know it, and where tools may go."""

import base64
from collections.abc import AsyncIterator, Iterator
from http.cookies import SimpleCookie
from typing import Any
from uuid import uuid4

import pytest
from loguru import logger
from pydantic import ValidationError

from connectors.errors import Misconfigured, OutcomeUnknown, Rejected, Unreachable
from connectors.http_tools.connector import HttpConfig, HttpConnector
from connectors.http_tools.tool import ToolConfig
from connectors.protocol import RunState
from connectors.testing import closing, everything_told_by
from tests.connectors.calling import run
from tests.connectors.declared_tools import TEXT, WHOLE, connector_of, tool, workflow_of
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.engines.target_answers import CLIENT_ID, CLIENT_SECRET
from tests.engines.target_api import Arrived, Reply, TargetApi, running_target_api

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
    "a key in a cookie": {"type": "api_key", "in": "cookie", "name": "session", "key": SECRET},
    "a bearer token": {"type": "bearer", "token": SECRET},
    "a user name": {"type": "basic", "username": "Jürgen", "password": SECRET},
}


@pytest.mark.parametrize("way", AUTHENTICATIONS)
async def test_no_credential_shows_wherever_an_api_repeats_it(api, way, caplog, log):
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


async def test_a_token_is_got_once_and_another_one_when_it_is_refused(api, shop):
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


async def test_a_token_that_is_refused_again_ends_the_run(api, shop):
    """C8.3: there is no third attempt."""
    connector, declared = shop
    api.tell("POST", "/orders", Reply(401, {"error": "not you"}))
    started = await connector.start(workflow_of(declared), {}, key=uuid4())
    assert started.snapshot is not None
    assert "401 Unauthorized: not you" in started.snapshot.error
    assert len(api.requests("POST", "/orders")) == 2


async def test_a_token_that_is_refused_where_the_result_is_fetched_sends_nothing_twice(api):
    """C8.3: a 303 says that the request was carried out, whatever the address that it names answers."""
    to = [
        {"in": "query", "name": name, "value": value}
        for name, value in (("status", 303), ("to", "/status/401"))
    ]
    declared = tool("POST", f"{api.base_url}/redirect", authentication=oauth(api), constants=to)
    snapshot = await run(declared)
    assert snapshot.state is RunState.FAILED
    assert len(api.requests("POST", "/redirect")) == 1


async def test_a_token_url_is_held_to_the_same_addresses_as_the_api(api):
    """C5.3: it is chosen by whoever declares the tool, too."""
    with running_target_api() as other, http_tool_hosts(f"127.0.0.1:{api.port}"):
        declared = tool("GET", f"{api.base_url}/text", authentication=oauth(other))
        with pytest.raises(Misconfigured, match="CATALOGUE_HTTP_TOOL_HOSTS"):
            await run(declared)
        assert other.arrived == []


async def test_an_address_that_is_not_public_is_not_contacted(api):
    """C5.3: unless an operator has allowed it."""
    with http_tool_hosts(""), pytest.raises(Misconfigured, match="CATALOGUE_HTTP_TOOL_HOSTS"):
        await run(tool("GET", f"{api.base_url}/text"))
    assert api.arrived == []


async def test_a_tool_never_sets_what_its_sources_key_goes_into(api):
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
async def test_credentials_that_nobody_has_entered_yet_are_asked_for(api, authentication, lacks):
    """B5: imported tools work once an admin has entered them."""
    declared = tool("GET", f"{api.base_url}/text")
    with pytest.raises(Misconfigured, match=f"The source does not have the {lacks}"):
        await run(declared, authentication=authentication)
    async with closing(connector_of(declared, authentication=authentication)) as connector:
        assert lacks in (await connector.check()).message
    assert api.arrived == []


async def test_a_check_says_what_it_proved_and_what_not(api):
    """B9: an API without a status page can only be reached."""
    plain, keyed = tool(endpoint=api.base_url), tool(endpoint=api.base_url, authentication=oauth(api))
    async with closing(connector_of(plain)) as connector:
        told = await connector.check()
        assert (told.ok, told.message) == (True, f"{api.base_url} can be reached: it answered 200.")
    async with closing(connector_of(keyed)) as connector:
        told = await connector.check()
        assert told.ok
        assert "a token was obtained, and it answered 200. Only a tool call shows" in told.message


FIRST, SECOND = "first-key-0123456789", "second-key-0123456789"
EXTRA = {"extra_key_1_name": "X-App-Key", "extra_key_1": FIRST}
EXTRA |= {"extra_key_2_in": "query", "extra_key_2_name": "token", "extra_key_2": SECOND}


@pytest.mark.parametrize("way", ["none", "oauth", *AUTHENTICATIONS])
async def test_extra_keys_are_sent_with_every_authentication(api, way):
    """C1.4: an API may require several keys at once."""
    ways = AUTHENTICATIONS | {"none": {"type": "none"}, "oauth": oauth(api)}
    headers = {"extra_headers": {"X-Version": "2022-06-28", "Accept": "application/vnd.example+json"}}
    declared = tool("POST", f"{api.base_url}/leak", authentication=ways[way])
    shown = repr(await run(declared, **EXTRA, **headers))
    headers_sent, query_sent = dict(api.last.headers), dict(api.last.query)
    assert (headers_sent["x-app-key"], query_sent["token"]) == (FIRST, SECOND)
    assert (headers_sent["x-version"], headers_sent["accept"]) == (*headers["extra_headers"].values(),)
    assert ("authorization" in headers_sent) == (way in ("oauth", "a bearer token", "a user name"))
    assert FIRST not in shown and SECOND not in shown
    assert "2022-06-28" in shown


async def test_extra_keys_and_headers_stay_at_the_apis_own_address(api):
    """C5.3: as all credentials do."""
    with running_target_api() as other, http_tool_hosts("127.0.0.1"):
        to = [{"in": "query", "name": "to", "value": f"{other.base_url}/echo"}]
        declared = tool("GET", f"{api.base_url}/redirect", constants=to)
        await run(declared, **EXTRA, extra_headers={"X-Tenant": "north"})
        assert not {"x-app-key", "x-tenant"} & {*dict(other.last.headers)} and "token" not in dict(
            other.last.query
        )
        assert {"x-app-key", "x-tenant"} <= {*dict(api.last.headers)}


COOKIE_KEY = {"extra_key_1_in": "cookie", "extra_key_1_name": "session", "extra_key_1": FIRST}


def cookies_of(sent: Arrived) -> dict[str, str]:
    """As a server reads them; a request must not have two such headers."""
    (header,) = [value for name, value in sent.headers if name.lower() == "cookie"]
    return {name: morsel.value for name, morsel in SimpleCookie(header).items()}


async def test_cookies_of_arguments_and_keys_arrive_in_one_header(api):
    """C1.4: a key shows nowhere, and the tool's own cookies are sent without it where it is anonymous."""
    places = {"lang": {"in": "cookie"}, "page": {"in": "cookie", "name": "page-size"}}
    arguments = {"lang": "de=A_1", "page": 5}
    for anonymous in (False, True):
        declared = tool(
            "GET", f"{api.base_url}/leak", {"lang": TEXT, "page": WHOLE}, mappings=places, anonymous=anonymous
        )
        shown = repr(await run(declared, arguments, **COOKIE_KEY))
        key = {} if anonymous else {"session": FIRST}
        assert cookies_of(api.last) == {"lang": "de=A_1", "page-size": "5"} | key
        assert FIRST not in shown and "de=A_1" in shown


async def test_cookies_stay_at_the_apis_own_address(api):
    """C5.3: those of arguments, too."""
    with running_target_api() as other, http_tool_hosts("127.0.0.1"):
        to = [{"in": "query", "name": "to", "value": f"{other.base_url}/echo"}]
        declared = tool(
            "GET", f"{api.base_url}/redirect", {"a": TEXT}, mappings={"a": {"in": "cookie"}}, constants=to
        )
        await run(declared, {"a": "1"}, **COOKIE_KEY)
        assert cookies_of(api.last) == {"a": "1", "session": FIRST}
        assert "cookie" not in {name.lower() for name, _ in other.last.headers}


@pytest.mark.parametrize("value", ["1; session=other", "1\r\nX-Admin: 1", "a b", 'a"b', "a,b", "ü", "a\\b"])
async def test_an_argument_never_becomes_another_cookie(api, value):
    """C4.5."""
    declared = tool("GET", f"{api.base_url}/echo", {"a": TEXT}, mappings={"a": {"in": "cookie"}})
    with pytest.raises(
        Rejected, match=r"The value of a contains a space, comma, semicolon.* Nothing was sent"
    ):
        await run(declared, {"a": value}, **COOKIE_KEY)
    assert api.arrived == []


async def test_a_tool_never_sets_the_cookie_that_is_its_sources_key(api):
    """C4.5."""
    mappings = {"a": {"in": "cookie", "name": "session"}}
    declared = tool("GET", f"{api.base_url}/echo", {"a": TEXT}, mappings=mappings)
    with pytest.raises(Misconfigured, match="sets session, which is reserved for the source's keys"):
        await run(declared, {"a": "1"}, **COOKIE_KEY)
    whole = {"extra_key_1_name": "Cookie", "extra_key_1": f"session={FIRST}"}
    with pytest.raises(Misconfigured, match="sets cookie, which is reserved for the source's keys"):
        await run(declared, {"a": "1"}, **whole)
    assert api.arrived == []


async def test_an_anonymous_tool_sends_extra_headers_but_no_keys(api):
    """C1.4: a version or a tenant is no credential."""
    declared = tool("GET", f"{api.base_url}/echo", anonymous=True)
    await run(declared, **EXTRA, extra_headers={"X-Tenant": "north"})
    assert "x-app-key" not in dict(api.last.headers) and "token" not in dict(api.last.query)
    assert dict(api.last.headers)["x-tenant"] == "north"


@pytest.mark.parametrize("name", ["x-app-key", "X-Tenant"])
@pytest.mark.parametrize("anonymous", [False, True])
async def test_a_tool_never_sets_what_the_source_sends(api, name, anonymous):
    """C4.5: an argument must not choose the tenant."""
    declared = tool(
        "GET", f"{api.base_url}/echo", {"a": TEXT}, mappings={"a": {"in": "header", "name": name}},
        anonymous=anonymous,
    )  # fmt: skip
    settings = EXTRA | {"extra_headers": {"X-Tenant": "north"}}
    if anonymous and name == "x-app-key":
        await run(declared, {"a": "1"}, **settings)
        return
    with pytest.raises(Misconfigured, match=f"sets {name.lower()}, which is reserved for the source's keys"):
        await run(declared, {"a": "1"}, **settings)
    repeatable = tool("POST", f"{api.base_url}/echo", idempotency_header=name, anonymous=anonymous)
    with pytest.raises(Misconfigured, match="reserved"):
        await run(repeatable, **settings)
    assert api.arrived == []


async def test_an_extra_key_without_a_value_is_asked_for_by_its_name(api):
    """B5: a call does not go out without it, and a check says so."""
    declared = tool("GET", f"{api.base_url}/text")
    settings = {"authentication": "api_key", "extra_key_2_name": "X-App-Key"}
    with pytest.raises(Misconfigured, match=r"does not have the API key, extra key 2 \(X-App-Key\)\. Enter"):
        await run(declared, **settings)
    async with closing(connector_of(declared, **EXTRA)) as connector:
        message = (await connector.check()).message
        assert "Only a tool call shows whether the API accepts the source's credentials." in message
    assert dict(api.last.headers)["x-app-key"] == FIRST


@pytest.mark.parametrize(
    ("settings", "field", "told"),
    [
        ({"extra_key_1_name": "Host"}, "extra_key_1_name", "not a valid name"),
        ({"extra_key_1_name": "X Key"}, "extra_key_1_name", "not a valid name"),
        ({"extra_key_1_name": "Proxy-Authorization"}, "extra_key_1_name", "not a valid name"),
        ({"extra_key_3": SECRET}, "extra_key_3_name", "must have a name. Enter it, or remove the key."),
        ({"extra_key_1_name": "X-Key", "authentication": "api_key", "api_key_name": "x-key"}, "", "already"),
        ({"extra_key_1_name": "a", "extra_key_2_name": "A"}, "extra_key_2_name", "sent in A already"),
        ({"extra_key_1_name": "Authorization", "authentication": "bearer"}, "extra_key_1_name", "already"),
        ({"extra_key_1_name": "X-A", "extra_headers": {"x-a": "1"}}, "extra_key_1_name", "already"),
        (COOKIE_KEY | {"extra_key_1_name": "a=b"}, "extra_key_1_name", "not a valid name of a cookie"),
        (COOKIE_KEY | {"extra_key_1": f"{SECRET}; a=b"}, "extra_key_1", "without a semicolon"),
        (COOKIE_KEY | {"extra_key_2_name": "cookie"}, "extra_key_2_name", "sent in cookie already"),
        ({"extra_key_1": f"{SECRET}\r\nX-Other: 1"}, "extra_key_1", "printable ASCII"),
        ({"extra_headers": {"X-A": "1\r\nX-B: 2"}}, "extra_headers", "X-A contains characters"),
        ({"extra_headers": {"X-A": "1", "x-a": "2"}}, "extra_headers", "given twice"),
        ({"extra_headers": {"Authorization": SECRET}}, "extra_headers", "only the product sets"),
        ({"extra_headers": {"Content-Type": "text/plain"}}, "extra_headers", "each request's body"),
        ({"extra_headers": {f"X-{number}": "1" for number in range(21)}}, "extra_headers", "at most 20"),
    ],
)
def test_extra_keys_and_headers_that_cannot_be_sent_are_refused(settings, field, told):
    """B5: at the setting, without the value."""
    with pytest.raises(ValidationError) as refused:
        HttpConfig(base_url="https://api.example.com", **settings)
    (problem,) = refused.value.errors()
    raised = problem.get("ctx", {}).get("error")
    assert told in problem["msg"] and SECRET not in str(refused.value)
    assert field in ("", *problem["loc"], getattr(raised, "field", ""))


def test_keys_in_different_places_may_have_one_name():
    """C1.4: a header and a parameter are two places."""
    settings: dict[str, Any] = {
        "extra_key_1_name": "key",
        "extra_key_2_name": "key",
        "extra_key_2_in": "query",
    }
    assert (
        HttpConfig(base_url="https://api.example.com", **settings).lacking
        == "extra key 1 (key), extra key 2 (key)"
    )
