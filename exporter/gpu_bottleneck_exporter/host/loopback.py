"""Addresses that mean this machine or this network namespace."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address


def is_here(address: IPv4Address | IPv6Address) -> bool:
    """Whether it is a loopback or unspecified address, which every machine has."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    found = mapped or address
    return found.is_loopback or found.is_unspecified
