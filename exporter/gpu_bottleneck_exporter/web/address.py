"""Which clients count as one: those behind one address, or in one IPv6 network."""

from __future__ import annotations

import ipaddress

_IPV6_NETWORK_BITS = 64
"""What one customer or machine has at least, and can choose addresses from as it likes."""


def neighbourhood(host: str) -> str:
    """The address, of IPv6 its /64; IPv4 written as IPv6 is IPv4; anything else is itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _IPV6_NETWORK_BITS), strict=False))
