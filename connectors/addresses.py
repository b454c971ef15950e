"""Where engines may live: on company networks, never where clouds hand out credentials."""

import asyncio
import contextlib
import ipaddress
import socket

import httpcore2
import httpx2

from connectors.errors import Misconfigured

METADATA_ADDRESSES = {
    ipaddress.ip_address(text)
    for text in ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
}
"""Where clouds hand out credentials, besides the link-local range."""
BROADCAST = ipaddress.ip_address("255.255.255.255")
NAT64 = ipaddress.ip_network("64:ff9b::/96")


def normalise_base_url(text: str) -> str:
    """The address without a trailing slash. Raises ValueError, never quoting a password."""
    try:
        url = httpx2.URL(text.strip())
    except httpx2.InvalidURL:
        raise ValueError("This is not a valid URL.") from None
    if url.scheme not in ("http", "https"):
        raise ValueError("The URL must start with http:// or https://.")
    if not url.host:
        raise ValueError("The URL names no host.")
    if url.port is not None and not 1 <= url.port <= 65535:
        raise ValueError("The URL's port must be from 1 to 65535.")
    if url.userinfo:
        raise ValueError("The URL must not contain a user name or password; use the credentials' own fields.")
    if url.query or url.fragment:
        raise ValueError("The URL must end before any '?' or '#'.")
    if objection := address_objection(url.host):
        raise ValueError(f"The URL points to {url.host}, {objection}.")
    return str(url).rstrip("/")


def address_objection(host: str) -> str:
    """Why no engine may live at this IP address; empty when one may, or when it is a name."""
    try:
        address = _unwrapped(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return ""
    if address.is_link_local or address in METADATA_ADDRESSES:
        return "a link-local or cloud metadata address"
    if address.is_multicast or address == BROADCAST:
        return "a multicast or broadcast address"
    return "an unspecified address" if address.is_unspecified else ""


def _unwrapped(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that an IPv6 address of a transition mechanism stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


async def resolve_allowed(host: str, port: int) -> list[str]:
    """The IP addresses of a host that an engine may have, in the resolver's order.

    Raises Misconfigured when there are only others, httpcore2.ConnectError when the name is unknown.
    """
    found = []
    with contextlib.suppress(OSError, UnicodeError):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not found:
        raise httpcore2.ConnectError(f"the name {host} could not be resolved")
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    allowed = [address for address in addresses if not address_objection(address)]
    if not allowed:
        raise Misconfigured(f"{host} is {addresses[0]}, {address_objection(addresses[0])}: not contacted.")
    return allowed
