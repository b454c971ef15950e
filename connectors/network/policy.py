"""Decides which addresses may be contacted, through which proxy, and which programs may be started: engines
also on private networks, HTTP tools on public ones and on what the operator allows. Link-local and cloud
metadata addresses are never contacted, whatever the name or notation. The settings of a source cannot extend
the operator's allowlists."""

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Self

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from connectors.errors import Misconfigured
from connectors.formats.lists import split_list

IPAddress = IPv4Address | IPv6Address

METADATA = tuple(
    ip_network(text)
    for text in (
        "100.100.100.200",  # Alibaba Cloud
        "fd00:100::100:200",
        "168.63.129.16",  # Azure
        "192.0.0.192",  # Oracle Cloud
        "fd00:c1::a9fe:a9fe",
        "fd00:ec2::/32",  # AWS: instances, and pods of EKS
        "fd20:ce::254",  # Google Cloud
        "fd00:42::42",  # Scaleway
        "fd00:a9fe:a9fe::1",  # Akamai
    )
)
BROADCAST = ip_address("255.255.255.255")
MAPPED = ip_network("::ffff:0:0/96")
NAT64 = ip_network("64:ff9b::/96")
END_IN_IPV4 = (  # Mapped, NAT64 (global and local), SIIT, and "compatible" addresses
    MAPPED,
    NAT64,
    ip_network("64:ff9b:1::/48"),
    ip_network("::ffff:0:0:0/96"),
    ip_network("::/96"),
)
PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
PUBLIC_IPV6 = ip_network("2000::/3")
NOT_PUBLIC = tuple(
    ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
"""Protocol assignments, documentation, relays and tunnels; what `ipaddress` calls global of these differs
between versions of Python."""
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
ENTRY = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*|[^\[\]]*:[^\[\]]*:[^\[\]]*?)(?::(?P<port>\d{1,5}))?")
"""Host and optional port; brackets around an IPv6 address with a port."""
NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
LOOKS_LIKE_IPV4 = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")
"""Resolvers read it as an address, because its last part is a number."""
_http_tool_hosts: "list[AllowedHost]" = []


def never_contacted(address: IPAddress) -> str:
    """Returns why no policy allows the address; else empty."""
    for meant in _meanings(address):
        if meant.is_link_local or any(meant in network for network in METADATA):
            return "a link-local or cloud metadata address"
        if meant.is_multicast or meant == BROADCAST:
            return "a multicast or broadcast address"
        if meant.is_unspecified:
            return "an unspecified address"
    return ""


def not_public(address: IPAddress) -> str:
    """The kind of the address, such as "a private address"; empty for a public one."""
    if isinstance(address, IPv6Address) and (address in MAPPED or address in NAT64):
        return not_public(_last_four(address))
    is_special = not address.is_global or any(address in network for network in NOT_PUBLIC)
    if not is_special and (address.version == 4 or address in PUBLIC_IPV6):
        return ""
    if address.is_loopback:
        return "a loopback address"
    private = any(address in network for network in PRIVATE)
    return "a private address" if private else "an address that is not public"


def _meanings(address: IPAddress) -> Iterator[IPAddress]:
    """The address, and the IPv4 addresses that transition mechanisms take it for."""
    yield address
    if isinstance(address, IPv4Address):
        return
    is_isatap = (int(address) >> 32) & 0xFDFFFFFF == 0x5EFE
    if is_isatap or any(address in network for network in END_IN_IPV4):
        yield _last_four(address)
    if address.sixtofour:
        yield address.sixtofour
    yield from address.teredo or ()


def _last_four(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class AllowedHost:
    name: str = ""  # Lower-case ASCII; a leading dot: all names below
    network: IPNetwork | None = None
    port: int | None = None

    def covers(self, host: str, address: IPAddress | None, port: int) -> bool:
        if self.port not in (None, port):
            return False
        if self.network is not None:
            if address is None:
                return False
            mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
            return address in self.network or (mapped or address) in self.network
        return host.endswith(self.name) if self.name.startswith(".") else host == self.name


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    entries: tuple[AllowedHost, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads comma-separated entries. Raises ValueError naming the bad entry."""
        return cls(tuple(map(_parse, split_list(text))))

    def covers(self, host: str, address: IPAddress | None, port: int) -> bool:
        """`address`: None where only the name is known."""
        host = host.lower().removesuffix(".")
        return any(entry.covers(host, address, port) for entry in self.entries)


def _parse(entry: str) -> AllowedHost:
    match = ENTRY.fullmatch(entry.lower())
    if match is None:
        raise ValueError(f"{entry!r} is not a valid host name, IP address or network, with an optional port")
    host, port = match["host"], match["port"]
    if port and not 1 <= int(port) <= 65535:
        raise ValueError(f"the port of {entry!r} must be from 1 to 65535")
    network = _network(host.strip("[]"), entry)
    name = "" if network else _name(host, entry)
    return AllowedHost(name, network, int(port) if port else None)


def _network(host: str, entry: str) -> IPNetwork | None:
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        if "/" in host or ":" in host:
            raise ValueError(f"{entry!r} is not a valid network, such as 10.1.0.0/16") from None
        return None
    if "/" in host and str(network.network_address) != str(ipaddress.ip_interface(host).ip):
        raise ValueError(f"{entry!r} is an address within a network; the network is {network}")
    # A network that overlaps forbidden addresses is accepted; those stay forbidden.
    reason = never_contacted(network[0])
    if reason and reason == never_contacted(network[-1]):
        raise ValueError(f"{entry!r} cannot be allowed: {reason} is never contacted")
    return network


def _name(host: str, entry: str) -> str:
    wildcard = host.startswith("*.")
    name = host.removeprefix("*.").removesuffix(".")
    if LOOKS_LIKE_IPV4.fullmatch(name):
        raise ValueError(f"{entry!r} is not a complete IP address, such as 127.0.0.1")
    try:
        ascii_name = httpx2.URL(scheme="http", host=name).raw_host.decode("ascii")
    except httpx2.InvalidURL:
        ascii_name = ""
    if not NAME.fullmatch(ascii_name):
        raise ValueError(f"{entry!r} is not a valid host name, such as billing.internal or *.internal")
    return f".{ascii_name}" if wildcard else ascii_name


@dataclass(frozen=True, kw_only=True, slots=True)
class AddressPolicy:
    public_only: bool = False  # Only public addresses, and hosts in `opened`
    opened: AllowedHosts = field(default_factory=AllowedHosts)
    advice: str = ""

    def objection(self, address: str, *, host: str = "", port: int = 0) -> str:
        """Returns why this IP address of `host` may not be contacted; empty if it may, or if it is a name."""
        try:
            parsed = _parsed(address)
        except ValueError:
            return ""
        if reason := never_contacted(parsed):
            return reason
        if not self.public_only or self.opened.covers(host or address, parsed, port):
            return ""
        return not_public(parsed)

    async def resolve(self, host: str, port: int) -> list[str]:
        """The host's permitted IP addresses, in the resolver's order. Raises Misconfigured if it has only
        others, httpx2.ConnectError for an unknown name."""
        found = []
        with contextlib.suppress(OSError, UnicodeError):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not found:
            raise httpx2.ConnectError(f"the name {host} could not be resolved")
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        allowed = [address for address in addresses if not self.objection(address, host=host, port=port)]
        if not allowed:
            raise self._refusal(host, addresses[0], port)
        return allowed

    def check(self, host: str, port: int) -> None:
        """Raises Misconfigured for an IP address that may not be contacted; a name is not looked at."""
        if self.objection(host, port=port):
            raise self._refusal(host, host, port)

    async def check_for_proxy(self, host: str, port: int) -> None:
        """Checks what this machine can tell, since a proxy resolves names itself, also those unknown here."""
        self.check(host, port)
        with contextlib.suppress(httpx2.ConnectError):
            await self.resolve(host, port)

    def _refusal(self, host: str, address: str, port: int) -> Misconfigured:
        objection, advice = self.objection(address, host=host, port=port), self.advice_about(address)
        return Misconfigured(f"{host} is {address}, {objection}: not contacted. {advice}".rstrip())

    def advice_about(self, address: str) -> str:
        """Empty for an address that nothing can allow."""
        return "" if never_contacted(_parsed(address)) else self.advice


def _parsed(address: str) -> IPAddress:
    """Drops its zone and the dot of a complete name. Raises ValueError for a name."""
    return ip_address(address.partition("%")[0].removesuffix("."))


ENGINE_ADDRESSES = AddressPolicy()


@lru_cache(maxsize=256)
def normalise_base_url(text: str, *, policy: AddressPolicy = ENGINE_ADDRESSES) -> str:
    """Drops a trailing slash. Raises ValueError like `endpoint_url`."""
    return endpoint_url(text, policy=policy).rstrip("/")


def endpoint_url(text: str, *, policy: AddressPolicy = ENGINE_ADDRESSES, may_have_query: bool = False) -> str:
    """Returns one endpoint's URL, with its trailing slash. Raises ValueError without quoting a password."""
    try:
        url = httpx2.URL(text.strip())
    except httpx2.InvalidURL:
        raise ValueError("This is not a valid URL.") from None
    if objection := _url_objection(url, may_have_query=may_have_query):
        raise ValueError(objection)
    if objection := policy.objection(url.host, port=port_of(url)):
        advice = policy.advice_about(url.host)
        raise ValueError(f"The URL points to {url.host}, {objection}. {advice}".rstrip())
    return str(url)


def _url_objection(url: httpx2.URL, *, may_have_query: bool) -> str:
    if url.scheme not in ("http", "https"):
        return "The URL must start with http:// or https://."
    if not url.host:
        return "The URL has no host."
    if "%" in url.host:
        # Escaped: a placeholder such as <host>.
        return "The URL's host is not a valid name; fill in placeholders."
    if url.port is not None and not 1 <= url.port <= 65535:
        return "The URL's port must be from 1 to 65535."
    if url.userinfo:
        return "The URL must not contain a user name or password; use the credentials' own fields."
    if url.fragment or (url.query and not may_have_query):
        ends = "'#'" if may_have_query else "'?' or '#'"
        return f"The URL must end before any {ends}."
    return ""


def check_issuer(url: str) -> str:
    """The issuer as its tokens name it. Raises ValueError."""
    endpoint_url(url)
    return check_scheme(url)


def check_scheme(url: str) -> str:
    """Raises ValueError for a URL with answers that could be modified in transit."""
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL:
        raise ValueError("is not a valid URL") from None
    is_this_machine = parts.host == "localhost"
    with contextlib.suppress(ValueError):
        is_this_machine = ip_address(parts.host).is_loopback
    if parts.scheme != "https" and not is_this_machine:
        raise ValueError("must begin with https://; plain http:// is allowed only for this machine")
    return url


def port_of(url: httpx2.URL) -> int:
    if url.port is not None:
        return url.port
    return 443 if url.scheme == "https" else 80


def address_objection(host: str) -> str:
    """Returns why no engine may have this IP address; empty if it may, or if it is a name."""
    return ENGINE_ADDRESSES.objection(host)


@dataclass(frozen=True, slots=True)
class OutboundProxy:
    """The proxy through which requests leave the company, for all hosts but this machine and `direct`."""

    host: str
    port: int
    user: str
    password: str
    direct: AllowedHosts

    @classmethod
    def parse(cls, url: str, direct: str) -> Self | None:
        """None for an empty URL. Raises ValueError without quoting a password."""
        if not url:
            return None
        try:
            parts = httpx2.URL(url)
        except httpx2.InvalidURL:
            parts = httpx2.URL("")
        is_alone = parts.raw_path in (b"", b"/") and not parts.fragment
        if parts.scheme != "http" or not (parts.host and is_alone and 0 < port_of(parts) < 65_536):
            raise ValueError("must be the address of an HTTP proxy, such as http://proxy.example.com:3128")
        hosts = AllowedHosts.parse(direct)
        return cls(parts.host, port_of(parts), parts.username, parts.password, hosts)

    def carries(self, host: str, port: int) -> bool:
        try:
            address = _parsed(host)
        except ValueError:
            return host.lower() != "localhost" and not self.direct.covers(host, None, port)
        return not address.is_loopback and not self.direct.covers(host, address, port)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


_outbound_proxy: list[OutboundProxy] = []


def use_outbound_proxy(url: str, direct: str) -> None:
    """Sets the proxy of connections that are made from now on. Raises ValueError like
    `OutboundProxy.parse`."""
    proxy = OutboundProxy.parse(url, direct)
    _outbound_proxy[:] = [] if proxy is None else [proxy]


def outbound_proxy() -> OutboundProxy | None:
    return _outbound_proxy[0] if _outbound_proxy else None


class StdioCommand(BaseModel):
    """A program that sources may start and talk to over its standard input and output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: list[str] = Field(min_length=1)
    more_arguments: bool = False
    environment: frozenset[str] = frozenset()
    directory: str = "/"


_stdio_commands: dict[str, StdioCommand] = {}


def allow_stdio_commands(commands: Mapping[str, StdioCommand]) -> None:
    _stdio_commands.clear()
    _stdio_commands.update(commands)


def allowed_stdio_command(name: str) -> StdioCommand:
    """Raises Misconfigured with the operator's next step."""
    if (command := _stdio_commands.get(name)) is not None:
        return command
    known = ", ".join(sorted(_stdio_commands)) or "none so far"
    raise Misconfigured(
        f"The command {name!r} is not allowed. An operator can allow it in the environment variable "
        f"CATALOGUE_STDIO_COMMANDS and restart. Allowed commands: {known}."
    )


def allow_http_tool_hosts(text: str) -> None:
    """Replace the private hosts that HTTP tools may reach. Raises ValueError naming the bad entry."""
    _http_tool_hosts[:] = AllowedHosts.parse(text).entries


def http_tool_addresses() -> AddressPolicy:
    return AddressPolicy(
        public_only=True,
        opened=AllowedHosts(tuple(_http_tool_hosts)),
        advice="An operator can allow it in the environment variable CATALOGUE_HTTP_TOOL_HOSTS and restart.",
    )
