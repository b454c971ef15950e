"""Where connections may go: engines may live on company networks, HTTP tools only reach what is public.

Nobody gets to link-local and cloud metadata addresses, by whatever name or spelling.
"""

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address

import httpcore2
import httpx2

from connectors.allowed_hosts import AllowedHosts
from connectors.errors import Misconfigured
from connectors.operator import allowed_http_tool_hosts
from connectors.special_addresses import IPAddress, never_contacted, not_public


@dataclass(frozen=True, kw_only=True, slots=True)
class AddressPolicy:
    """Which addresses may be contacted."""

    public_only: bool = False
    """Only addresses of the public internet, and what is in `opened`."""
    opened: AllowedHosts = field(default_factory=AllowedHosts)
    advice: str = ""
    """What whoever needs another address has to do; a sentence."""

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
        """Empty where nothing helps."""
        return "" if never_contacted(_parsed(address)) else self.advice


def _parsed(address: str) -> IPAddress:
    """Without the zone. Raises ValueError for a name."""
    return ip_address(address.partition("%")[0])


ENGINE_ADDRESSES = AddressPolicy()


def http_tool_addresses() -> AddressPolicy:
    """Where HTTP tools may go, as the operator has it now."""
    return AddressPolicy(
        public_only=True,
        opened=allowed_http_tool_hosts(),
        advice="An operator can allow it in the environment variable CATALOGUE_HTTP_TOOL_HOSTS and restart.",
    )


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
    """Also where the URL leaves it to the scheme."""
    if url.port is not None:
        return url.port
    return 443 if url.scheme == "https" else 80


def address_objection(host: str) -> str:
    """Why no engine may live at this IP address; empty when one may, or when it is a name."""
    return ENGINE_ADDRESSES.objection(host)


async def resolve_allowed(host: str, port: int) -> list[str]:
    """`AddressPolicy.resolve` for engines."""
    return await ENGINE_ADDRESSES.resolve(host, port)
