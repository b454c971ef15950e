"""A list of hosts and networks, as an operator writes it down."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

import httpx2

from connectors.special_addresses import IPAddress, never_contacted, plain

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
            return address in self.network or plain(address) in self.network
        return host.endswith(self.name) if self.name.startswith(".") else host == self.name


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    entries: tuple[AllowedHost, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """From entries with commas between them. Raises ValueError, a sentence that names the bad entry."""
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
    """A wider network is accepted, and what is never contacted stays closed within it."""
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
