"""Where HTTP tools may go: the public internet, and what an operator has opened."""

import contextlib
import re
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from connectors.errors import Misconfigured
from connectors.http_tools.connector import HttpConfig
from connectors.network.client import EngineClient
from connectors.network.oauth import ClientCredentials
from connectors.network.policy import ENGINE_ADDRESSES, AddressPolicy, AllowedHosts, http_tool_addresses
from tests.connectors.http_tool_hosts import http_tool_hosts
from tests.connectors.resolving import names
from tests.connectors.scripted import ScriptedEngine, replies

LOCAL = "127.0.0.1"


def allowing(text: str) -> AddressPolicy:
    with http_tool_hosts(text):
        return http_tool_addresses()


async def told_by(base_url: str, policy: AddressPolicy) -> str:
    """Why a request to the base URL was not sent, or `answered`."""
    try:
        client = EngineClient(base_url=base_url, policy=policy)
        async with contextlib.aclosing(client):
            await client.exchange("GET", "/", repeatable=True)
    except Misconfigured as error:
        return error.message
    return "answered"


# --- what is refused ---


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "127.1",
        "127.0.0.1.",
        "127.1.",
        "localhost.",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "0",
        "0.0.0.0",
        "[::]",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
    ],
)
async def test_no_spelling_of_this_machine_is_contacted(host):
    """C9, B8: a listener on loopback sees no connection, however its address is written."""
    async with ScriptedEngine(replies(200, {})) as engine:
        told = await told_by(f"http://{host}:{engine.port}", http_tool_addresses())
        assert engine.connections == 0
    assert re.search(r"a loopback|an unspecified|a multicast|not public|not a valid URL", told)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("10.1.2.3", "a private address"),
        ("172.31.255.255", "a private address"),
        ("192.168.1.1", "a private address"),
        ("fd12:3456::1", "a private address"),
        ("127.8.8.8", "a loopback address"),
        ("100.64.0.1", "not public"),
        ("0.1.2.3", "not public"),
        ("192.0.0.8", "not public"),
        ("192.0.2.1", "not public"),
        ("192.88.99.1", "not public"),
        ("198.18.0.1", "not public"),
        ("198.51.100.1", "not public"),
        ("203.0.113.1", "not public"),
        ("240.0.0.1", "not public"),
        ("100::1", "not public"),
        ("2001:db8::1", "not public"),
        ("2001:0:5db8:d822::1", "not public"),
        ("2002:a01:203::1", "not public"),
        ("3fff::1", "not public"),
        ("4000::1", "not public"),
        ("5f00::1", "not public"),
        ("fec0::1", "not public"),
        ("64:ff9b:1::808:808", "not public"),
        ("64:ff9b::a01:203", "a private address"),
        ("::ffff:10.1.2.3", "a private address"),
        ("::10.1.2.3", "not public"),
        ("::ffff:0:10.1.2.3", "not public"),
        ("169.254.169.254", "link-local or cloud metadata"),
        ("fe80::1%eth0", "link-local or cloud metadata"),
        ("fd00:ec2::254", "link-local or cloud metadata"),
        ("fd00:ec2::23", "link-local or cloud metadata"),
        ("100.100.100.200", "link-local or cloud metadata"),
        ("168.63.129.16", "link-local or cloud metadata"),
        ("224.0.0.1", "multicast or broadcast"),
        ("ff02::1", "multicast or broadcast"),
        ("255.255.255.255", "multicast or broadcast"),
        ("::", "unspecified"),
    ],
)
async def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused(monkeypatch, address, reason):
    """C9, B8: what counts is the address that would be connected to."""
    names(monkeypatch, **{"api.example.com": [[address]]})
    told = await told_by("http://api.example.com", http_tool_addresses())
    assert told.startswith(f"api.example.com is {address}, ")
    assert reason in told
    can_be_opened = reason in ("a private address", "a loopback address", "not public")
    assert ("CATALOGUE_HTTP_TOOL_HOSTS" in told) == can_be_opened


@pytest.mark.parametrize(
    "address",
    ["93.184.216.34", "2606:4700::1111", "64:ff9b::5db8:d822", "::ffff:93.184.216.34", "192.31.196.1"],
)
def test_public_addresses_are_reached_without_asking_anybody(address):
    """C9: also through a NAT64 gateway."""
    assert http_tool_addresses().objection(address) == ""


NOT_PUBLIC_V4 = st.sampled_from(
    ["10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"]
).flatmap(lambda text: st.integers(0, ip_network(text).num_addresses - 1).map(lambda n: ip_network(text)[n]))


@given(NOT_PUBLIC_V4, st.integers(0, 2**32 - 1))
def test_no_transition_mechanism_disguises_an_address(address, noise):
    """C9: an IPv4 address that is refused is refused in every IPv6 form; link-local ones by every policy."""
    number = int(address)
    inverted = number ^ 0xFFFFFFFF
    for disguise in (
        number,
        0xFFFF << 32 | number,
        0xFFFF << 48 | number,
        0x64FF9B << 96 | number,
        0x64FF9B0001 << 80 | number,
        0x2002 << 112 | number << 80 | noise,
        0x20010000 << 96 | noise << 64 | inverted,
        0x20010000 << 96 | number << 64 | noise,
        0xFD000000 << 96 | 0x5EFE << 32 | number,
    ):
        assert http_tool_addresses().objection(str(IPv6Address(disguise)))
        if IPv4Address(number).is_link_local:
            assert ENGINE_ADDRESSES.objection(str(IPv6Address(disguise)))
            assert allowing("::/0,0.0.0.0/0").objection(str(IPv6Address(disguise)))


async def test_the_addresses_of_a_name_that_are_not_public_are_passed_over(monkeypatch):
    """C9: one public address among others does not open these."""
    names(monkeypatch, **{"api.example.com": [["10.0.0.1", "93.184.216.34", "127.0.0.1"]]})
    assert await http_tool_addresses().resolve("api.example.com", 80) == ["93.184.216.34"]


async def test_a_name_whose_meaning_changes_is_refused_when_it_is_connected_to_again(monkeypatch):
    """C9: DNS rebinding gains nothing: each connection is to an address that was checked for it."""
    closes = replies(200, {}, connection="close")
    async with (
        ScriptedEngine(closes) as allowed,
        ScriptedEngine(closes, host="127.0.0.2", wanted_port=allowed.port) as other,
    ):
        service = names(monkeypatch, **{"api.example.com": [["127.0.0.1"], ["127.0.0.2"]]})
        client = EngineClient(
            base_url=f"http://api.example.com:{allowed.port}", policy=allowing("127.0.0.1/32")
        )
        assert (await client.exchange("GET", "/", repeatable=True)).status == 200
        with pytest.raises(Misconfigured, match=r"api\.example\.com is 127\.0\.0\.2, a loopback address"):
            await client.exchange("GET", "/", repeatable=True)
        await client.aclose()
        assert (allowed.connections, other.connections) == (1, 0)
    assert service.asked == ["api.example.com"] * 2


async def test_the_connection_of_an_allowed_host_serves_no_other_host(monkeypatch):
    """C9: a redirect to a name at the same address opens a connection of its own, or none."""
    async with ScriptedEngine(replies(200, {})) as engine:
        names(monkeypatch, **{"good.example.com": [[LOCAL]], "evil.example.com": [[LOCAL]]})
        engine.behave = replies(302, location=f"http://evil.example.com:{engine.port}/")
        client = EngineClient(
            base_url=f"http://good.example.com:{engine.port}", policy=allowing("good.example.com")
        )
        answer = await client.exchange("GET", "/", repeatable=True, follow_redirects=True)
        await client.aclose()
        assert (engine.connections, len(engine.received)) == (1, 1)
    assert "evil.example.com is 127.0.0.1, a loopback address: not contacted" in answer.not_followed


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"])
async def test_no_proxy_is_asked_to_go_where_we_may_not(monkeypatch, variable):
    """C9, E6: a proxy would resolve the name itself, unchecked."""
    async with ScriptedEngine(replies(200, {})) as proxy:
        monkeypatch.setenv(variable, proxy.base_url)
        assert "private address" in await told_by("http://10.0.0.1", http_tool_addresses())
        assert proxy.connections == 0


async def test_a_token_url_is_held_to_the_same_addresses(monkeypatch):
    """C9, E2: nor is a client secret sent where HTTP tools may not go."""
    async with ScriptedEngine(replies(200, {"access_token": "t"})) as authority:
        names(monkeypatch, **{"login.example.com": [[LOCAL]]})
        config = HttpConfig(
            base_url="http://api.example.com", oauth_client_id="us", oauth_client_secret=SecretStr("hunter2")
        )
        credentials = ClientCredentials(
            config,
            url=f"http://login.example.com:{authority.port}/token",
            seconds=30.0,
            policy=http_tool_addresses(),
        )
        with pytest.raises(Misconfigured, match=r"No access token.*a loopback address: not contacted"):
            await credentials.token()
        await credentials.aclose()
        assert authority.connections == 0


# --- what an operator opens ---


@pytest.mark.parametrize(
    ("allowed", "opened", "closed"),
    [
        (
            "127.0.0.1",
            ["127.0.0.1", "127.0.0.1.", "localhost.", "127.1", "[::ffff:127.0.0.1]"],
            ["127.0.0.2", "127.0.0.2.", "[::1]"],
        ),
        ("127.0.0.0/30", ["127.0.0.1", "127.0.0.2"], ["127.0.0.5"]),
        ("localhost", ["localhost", "LocalHost."], ["127.0.0.1", "127.0.0.2"]),
        ("*.local.example", ["a.local.example", "b.c.local.example"], ["local.example", "alocal.example"]),
        ("Bücher.example", ["bücher.example", "xn--bcher-kva.example"], ["bucher.example"]),
        ("127.0.0.1:{port}", ["127.0.0.1"], []),
        ("localhost:{port}, 127.0.0.2:{port}", ["localhost", "127.0.0.2"], ["127.0.0.1"]),
        ("127.0.0.1:1, localhost:2", [], ["127.0.0.1", "localhost"]),
        ("0.0.0.0/0", ["127.0.0.1", "127.0.0.2"], ["0.0.0.0", "[::1]"]),
        ("", [], ["127.0.0.1"]),
    ],
)
async def test_the_list_opens_what_it_says_and_nothing_else(monkeypatch, allowed, opened, closed):
    """C9: by name, by address, by network, and each on one port where one is given."""
    examples = ("a.local.example", "b.c.local.example", "local.example", "alocal.example")
    books = ("xn--bcher-kva.example", "bucher.example")
    names(monkeypatch, **{name: [[LOCAL]] for name in (*examples, *books, "localhost", "localhost.")})
    async with (
        ScriptedEngine(replies(200, {})) as engine,
        ScriptedEngine(replies(200, {}), host="127.0.0.2", wanted_port=engine.port),
    ):
        policy = allowing(allowed.format(port=engine.port))
        for host in opened:
            assert await told_by(f"http://{host}:{engine.port}", policy) == "answered"
        for host in closed:
            assert await told_by(f"http://{host}:{engine.port}", policy) != "answered"


@pytest.mark.parametrize(
    "allowed",
    [
        "metadata.example.com",
        "*.example.com",
        "169.0.0.0/8,fc00::/7,100.64.0.0/10,168.0.0.0/8",
        "::/0,0.0.0.0/0",
    ],
)
@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "::ffff:169.254.169.254",
        "fe80::1",
    ],
)
async def test_no_list_opens_the_way_to_a_clouds_credentials(monkeypatch, allowed, address):
    """C9, B8: neither by name nor by a network around it; and no advice is given that would not help."""
    names(monkeypatch, **{"metadata.example.com": [[address]]})
    told = await told_by("http://metadata.example.com", allowing(allowed))
    assert (
        told == f"metadata.example.com is {address}, a link-local or cloud metadata address: not contacted."
    )


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ("http://billing.internal", "not a valid host name, IP address or network"),
        ("billing.internal/orders", "not a valid network, such as"),
        ("user@billing.internal", "not a valid host name, such as"),
        ("billing internal", "not a valid host name, such as"),
        ("*", "not a valid host name, such as"),
        ("billing.*", "not a valid host name, such as"),
        ("a..b", "not a valid host name, such as"),
        ("billing:0", "port of"),
        ("billing:99999", "port of"),
        ("billing:http", "not a valid host name, IP address or network"),
        ("10.1.2.3/16", "the network is 10.1.0.0/16"),
        ("10.1.0.0/33", "not a valid network, such as"),
        ("127.1", "not a complete IP address"),
        ("2130706433", "not a complete IP address"),
        ("0x7f000001", "not a complete IP address"),
        ("169.254.169.254", "never contacted"),
        ("169.254.0.0/16", "never contacted"),
        ("[fe80::1]:80", "never contacted"),
        ("::ffff:169.254.169.254", "never contacted"),
        ("224.0.0.0/4", "never contacted"),
        ("0.0.0.0", "never contacted"),
    ],
)
def test_what_cannot_be_an_entry_is_named(entry, complaint):
    """B4, C9: a list with a mistake opens nothing."""
    with pytest.raises(ValueError, match=complaint) as caught:
        AllowedHosts.parse(f"10.0.0.0/8, {entry}")
    assert repr(entry) in str(caught.value)
