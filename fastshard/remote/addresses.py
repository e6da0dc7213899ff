"""Addresses of hosts: resolution, and the check that they are public."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from urllib3.util.connection import allowed_gai_family

from fastshard.errors import RemoteError

__all__ = ["RefusedHostError", "is_public", "public_addresses"]

IPv4 = ipaddress.IPv4Address
IPv6 = ipaddress.IPv6Address

GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # an IPv4 address in the last 32 bits
NOT_PUBLIC = (  # carrier-grade NAT, and networks that older Pythons call global
    ipaddress.IPv4Network("100.64.0.0/10"),
    ipaddress.IPv4Network("192.0.0.0/24"),
    ipaddress.IPv4Network("192.88.99.0/24"),
    ipaddress.IPv4Network("198.18.0.0/15"),
)


class RefusedHostError(RemoteError):
    """A host has a private address, and ``private_hosts`` is False."""


def is_public(text: str) -> bool:
    """Return whether an address belongs to a host on the public internet.

    An IPv6 address that contains an IPv4 address (mapped, NAT64, 6to4) is as public
    as the IPv4 address.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, IPv6):
        inner = _embedded(address)
        if inner is None:
            return address in GLOBAL_UNICAST and address.is_global
        address = inner
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in NOT_PUBLIC)
    )


def _embedded(address: IPv6) -> IPv4 | None:
    """Return the IPv4 address that an IPv6 address is translated to, or None."""
    if address in NAT64:
        return IPv4(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def public_addresses(host: str, port: int) -> list[str]:
    """Resolve a host; return its addresses if all of them are public."""
    found: list[Any] = socket.getaddrinfo(
        host.strip("[]"), port, allowed_gai_family(), socket.SOCK_STREAM
    )
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        if not is_public(address):
            of = "" if address == host else f" (of {host})"
            raise RefusedHostError(f"{address} is not a public address{of}", host)
    return addresses
