"""Which clients count as one: those with the same IPv4 address, or in the same IPv6 /64."""

from __future__ import annotations

import ipaddress

_IPV6_NETWORK_BITS = 64
"""The least that a customer or machine gets; it can use any address in it."""


def neighbourhood(host: str) -> str:
    """The address, or the /64 of an IPv6 one; IPv4-mapped IPv6 counts as IPv4, a name as itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _IPV6_NETWORK_BITS), strict=False))
