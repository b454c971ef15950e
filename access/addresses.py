import ipaddress
import re
from collections.abc import Iterable
from functools import cache
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from loguru import logger

from connectors.formats.lists import split_list

SHOWN_NAME = 100
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NEIGHBOURS = {4: 32, 6: 64}  # Prefix lengths: one subscriber has a whole network of IPv6 addresses

WITH_PORT = re.compile(r"\[(?P<ipv6>[^\[\]]*)\](?::\d+)?|(?P<ipv4>[\d.]+):\d+")


def client_address(peer: str | None, forwarded_for: str) -> str:
    """The peer's, or the one that a trusted proxy names in `X-Forwarded-For`."""
    trusted, hops = _trusted_proxies(), split_list(forwarded_for)
    address = _plain(peer or "")
    while hops and _is_within(address, trusted):
        address = _plain(hops.pop())
    return address[:SHOWN_NAME]


def note_scheme(peer: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Log once that a trusted proxy has another scheme than CATALOGUE_PUBLIC_URL."""
    said = next((value.decode("latin-1") for name, value in headers if name == b"x-forwarded-proto"), "")
    used, public = said.partition(",")[0].strip(), urlsplit(settings.PUBLIC_URL).scheme
    if used != public and (said or public == "https") and _is_within(_plain(peer), _trusted_proxies()):
        warn_once(settings.PUBLIC_URL, used if used in ("https", "http") else "no known scheme")


@cache
def warn_once(public_url: str, used: str) -> None:
    effect = "cookies are not Secure, and forms are refused" if used == "https" else "no HSTS header is sent"
    told = "CATALOGUE_PUBLIC_URL is {}, and a trusted proxy says by X-Forwarded-Proto that clients use {}: {}"
    logger.warning(told, public_url, used, effect)


def address_of(request: HttpRequest) -> str:
    """The client's, of a request to Django."""
    return client_address(request.META.get("REMOTE_ADDR"), request.headers.get("X-Forwarded-For", ""))


def _trusted_proxies() -> list[Network]:
    return [ipaddress.ip_network(network) for network in split_list(settings.CATALOGUE.trusted_proxies)]


def _plain(address: str) -> str:
    """Omits the port that some proxies add, another for each connection, and returns as IPv4 what a socket
    for both families shows as `::ffff:192.0.2.1`: all of these are in one IPv6 network."""
    if match := WITH_PORT.fullmatch(address):
        address = match["ipv6"] or match["ipv4"]
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if parsed.version == 6 else None
    return address if mapped is None else str(mapped)


def _is_within(address: str, networks: list[Network]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)


def neighbourhood(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, NEIGHBOURS[parsed.version]), strict=False))
