import ipaddress
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from audit.recording import Origin, origin

SHOWN_NAME = 100
NEIGHBOURS = {4: 32, 6: 64}  # Prefix lengths: one subscriber has a whole network of IPv6 addresses


def client_address(peer: str | None, forwarded_for: str) -> str:
    """The peer's, or the one that a trusted proxy names in `X-Forwarded-For`."""
    listed = settings.CATALOGUE["trusted_proxies"].split(",")
    trusted = [ipaddress.ip_network(network.strip()) for network in listed if network.strip()]
    hops = [hop.strip() for hop in forwarded_for.split(",") if hop.strip()]
    address = peer or ""
    while hops and _is_within(address, trusted):
        address = hops.pop()
    return address[:SHOWN_NAME]


def _is_within(address: str, networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
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


class OriginMiddleware:
    """Notes for the audit where a request comes from."""

    def __init__(self, answer: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._answer = answer

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        peer, forwarded = request.META.get("REMOTE_ADDR"), request.headers.get("X-Forwarded-For", "")
        noted = origin.set(Origin(client_address(peer, forwarded), request.headers.get("User-Agent", "")))
        try:
            return self._answer(request)
        finally:
            origin.reset(noted)
