"""Which addresses may be contacted: engines also on private networks, HTTP tools only what is public.

Link-local and cloud metadata addresses are never contacted, whatever name or spelling leads to them.
"""

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Self

import httpcore2
import httpx2

from connectors.errors import Misconfigured

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
"""Addresses at which clouds serve credentials, in addition to the link-local range."""
BROADCAST = ip_address("255.255.255.255")
MAPPED = ip_network("::ffff:0:0/96")
NAT64 = ip_network("64:ff9b::/96")
END_IN_IPV4 = (
    MAPPED,
    NAT64,
    ip_network("64:ff9b:1::/48"),
    ip_network("::ffff:0:0:0/96"),
    ip_network("::/96"),
)
"""Mapped, translated by NAT64 (globally and within one network) or SIIT, and "compatible"."""
PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
PUBLIC_IPV6 = ip_network("2000::/3")
NOT_PUBLIC = tuple(
    ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
"""Protocols' own, documentation, and relays and tunnels to anywhere. What of this `ipaddress` calls global
differs between versions of Python."""


def never_contacted(address: IPAddress) -> str:
    """Why no policy allows the address; else empty."""
    return next(filter(None, map(_never, _meanings(address))), "")


def not_public(address: IPAddress) -> str:
    """What kind of address it is, such as "a private address"; empty for a public one."""
    if isinstance(address, IPv6Address) and (address in MAPPED or address in NAT64):
        return not_public(_last_four(address))
    if _is_public(address):
        return ""
    if address.is_loopback:
        return "a loopback address"
    private = any(address in network for network in PRIVATE)
    return "a private address" if private else "an address that is not public"


def without_mapping(address: IPAddress) -> IPAddress:
    """The IPv4 address that an IPv4-mapped one stands for; any other address as it is."""
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def _is_public(address: IPAddress) -> bool:
    if not address.is_global or any(address in network for network in NOT_PUBLIC):
        return False
    return address.version == 4 or address in PUBLIC_IPV6


def _never(address: IPAddress) -> str:
    if address.is_link_local or any(address in network for network in METADATA):
        return "a link-local or cloud metadata address"
    if address.is_multicast or address == BROADCAST:
        return "a multicast or broadcast address"
    return "an unspecified address" if address.is_unspecified else ""


def _meanings(address: IPAddress) -> Iterator[IPAddress]:
    """The address, and the IPv4 addresses that it stands for to a transition mechanism."""
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


IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
ENTRY = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*|[^\[\]]*:[^\[\]]*:[^\[\]]*?)(?::(?P<port>\d{1,5}))?")
"""A host and perhaps a port; an IPv6 address has brackets around it where a port follows."""
NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
LOOKS_LIKE_IPV4 = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")
"""What resolvers take for an address in some spelling, because its last part is a number."""


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """One entry: a name, the names below one, or a network; on one port or on all."""

    name: str = ""
    """In lower case and ASCII; with a leading dot it stands for all names below."""
    network: IPNetwork | None = None
    port: int | None = None

    def covers(self, host: str, address: IPAddress, port: int) -> bool:
        if self.port not in (None, port):
            return False
        if self.network is not None:
            return address in self.network or without_mapping(address) in self.network
        return host.endswith(self.name) if self.name.startswith(".") else host == self.name


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    entries: tuple[AllowedHost, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """From entries separated by commas. Raises ValueError with a sentence that names the bad entry."""
        return cls(tuple(_parse(entry.strip()) for entry in text.split(",") if entry.strip()))

    def cover(self, host: str, address: IPAddress, port: int) -> bool:
        """Whether `host`, which is at `address`, is in the list."""
        host = host.lower().removesuffix(".")
        return any(entry.covers(host, address, port) for entry in self.entries)


def _parse(entry: str) -> AllowedHost:
    match = ENTRY.fullmatch(entry.lower())
    if match is None:
        raise ValueError(f"{entry!r} is no host name, IP address or network, with or without a port")
    host, port = match["host"], match["port"]
    if port and not 1 <= int(port) <= 65535:
        raise ValueError(f"the port of {entry!r} must be from 1 to 65535")
    number = int(port) if port else None
    network = _network(host.strip("[]"), entry)
    return (
        AllowedHost(network=network, port=number) if network else AllowedHost(_name(host, entry), port=number)
    )


def _network(host: str, entry: str) -> IPNetwork | None:
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        if "/" in host or ":" in host:
            raise ValueError(f"{entry!r} is no network such as 10.1.0.0/16") from None
        return None
    if "/" in host and str(network.network_address) != str(ipaddress.ip_interface(host).ip):
        raise ValueError(f"{entry!r} is an address within a network; the network is {network}")
    if reason := _never_in(network):
        raise ValueError(f"{entry!r} cannot be allowed: {reason} is never contacted")
    return network


def _never_in(network: IPNetwork) -> str:
    """A network that is only in part never contacted is accepted; that part stays closed."""
    first, last = never_contacted(network[0]), never_contacted(network[-1])
    return first if first == last else ""


def _name(host: str, entry: str) -> str:
    wildcard = host.startswith("*.")
    name = host.removeprefix("*.").removesuffix(".")
    if LOOKS_LIKE_IPV4.fullmatch(name):
        raise ValueError(f"{entry!r} is no IP address in full, such as 127.0.0.1")
    try:
        ascii_name = httpx2.URL(scheme="http", host=name).raw_host.decode("ascii")
    except httpx2.InvalidURL:
        ascii_name = ""
    if not NAME.fullmatch(ascii_name):
        raise ValueError(f"{entry!r} is no host name such as billing.internal or *.internal")
    return f".{ascii_name}" if wildcard else ascii_name


@dataclass(frozen=True, kw_only=True, slots=True)
class AddressPolicy:
    """Which addresses may be contacted."""

    public_only: bool = False
    """Only public addresses, and the hosts in `opened`."""
    opened: AllowedHosts = field(default_factory=AllowedHosts)
    advice: str = ""
    """How another address can be allowed; a sentence."""

    def objection(self, address: str, *, host: str = "", port: int = 0) -> str:
        """Why this IP address of `host` may not be contacted; empty when it may, or when it is a name."""
        try:
            parsed = _parsed(address)
        except ValueError:
            return ""
        if reason := never_contacted(parsed):
            return reason
        if not self.public_only or self.opened.cover(host or address, parsed, port):
            return ""
        return not_public(parsed)

    async def resolve(self, host: str, port: int) -> list[str]:
        """The IP addresses of a host that may be contacted, in the resolver's order.

        Raises Misconfigured when there are only others, httpcore2.ConnectError when the name is unknown.
        """
        found = []
        with contextlib.suppress(OSError, UnicodeError):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if not found:
            raise httpcore2.ConnectError(f"the name {host} could not be resolved")
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        allowed = [address for address in addresses if not self.objection(address, host=host, port=port)]
        if not allowed:
            objection = self.objection(addresses[0], host=host, port=port)
            advice = self.advice_about(addresses[0])
            raise Misconfigured(f"{host} is {addresses[0]}, {objection}: not contacted. {advice}".rstrip())
        return allowed

    def advice_about(self, address: str) -> str:
        """Empty for an address that nothing can allow."""
        return "" if never_contacted(_parsed(address)) else self.advice


def _parsed(address: str) -> IPAddress:
    """Without the zone. Raises ValueError for a name."""
    return ip_address(address.partition("%")[0])


ENGINE_ADDRESSES = AddressPolicy()


@lru_cache(maxsize=256)
def normalise_base_url(text: str, *, policy: AddressPolicy = ENGINE_ADDRESSES) -> str:
    """The address without a trailing slash, for paths to follow. Raises ValueError like `endpoint_url`."""
    return endpoint_url(text, policy=policy).rstrip("/")


def endpoint_url(text: str, *, policy: AddressPolicy = ENGINE_ADDRESSES) -> str:
    """The address of one endpoint, with the slash at its end if it has one: to servers that is another path.

    Raises ValueError, never quoting a password.
    """
    try:
        url = httpx2.URL(text.strip())
    except httpx2.InvalidURL:
        raise ValueError("This is not a valid URL.") from None
    if objection := _url_objection(url):
        raise ValueError(objection)
    if objection := policy.objection(url.host, port=port_of(url)):
        advice = policy.advice_about(url.host)
        raise ValueError(f"The URL points to {url.host}, {objection}. {advice}".rstrip())
    return str(url)


def _url_objection(url: httpx2.URL) -> str:
    if url.scheme not in ("http", "https"):
        return "The URL must start with http:// or https://."
    if not url.host:
        return "The URL names no host."
    if url.port is not None and not 1 <= url.port <= 65535:
        return "The URL's port must be from 1 to 65535."
    if url.userinfo:
        return "The URL must not contain a user name or password; use the credentials' own fields."
    if url.query or url.fragment:
        return "The URL must end before any '?' or '#'."
    return ""


def port_of(url: httpx2.URL) -> int:
    """The URL's port, else the scheme's default."""
    if url.port is not None:
        return url.port
    return 443 if url.scheme == "https" else 80


def address_objection(host: str) -> str:
    """Why no engine may live at this IP address; empty when one may, or when it is a name."""
    return ENGINE_ADDRESSES.objection(host)


async def resolve_allowed(host: str, port: int) -> list[str]:
    """`AddressPolicy.resolve` for engines."""
    return await ENGINE_ADDRESSES.resolve(host, port)
