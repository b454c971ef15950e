"""What an IP address is, whatever it is disguised as: never to be contacted, not public, or public."""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

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
"""Where clouds hand out credentials, besides the link-local range."""
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
"""Mapped, translated by NAT64 (everywhere and within one network) or SIIT, and "compatible"."""
PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
PUBLIC_IPV6 = ip_network("2000::/3")
NOT_PUBLIC = tuple(
    ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
"""Protocols' own, documentation, and relays and tunnels to anywhere. What of this `ipaddress` calls global
differs between versions of Python."""


def never_contacted(address: IPAddress) -> str:
    """Why nothing may be contacted there, by whomever; else empty."""
    return next(filter(None, map(_never, _meanings(address))), "")


def not_public(address: IPAddress) -> str:
    """What the address is instead of public, such as "a private address"; else empty."""
    if isinstance(address, IPv6Address) and (address in MAPPED or address in NAT64):
        return not_public(_last_four(address))
    if _is_public(address):
        return ""
    if address.is_loopback:
        return "a loopback address"
    private = any(address in network for network in PRIVATE)
    return "a private address" if private else "an address that is not public"


def plain(address: IPAddress) -> IPAddress:
    """The IPv4 address where the other is only its spelling for IPv6 sockets."""
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
    if any(address in network for network in END_IN_IPV4) or _is_isatap(address):
        yield _last_four(address)
    if address.sixtofour:
        yield address.sixtofour
    yield from address.teredo or ()


def _is_isatap(address: IPv6Address) -> bool:
    return (int(address) >> 32) & 0xFDFFFFFF == 0x5EFE


def _last_four(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)
