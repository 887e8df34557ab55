"""Parses a listen address and opens its socket.

That comes first, so that a wrong address does not leave the exporter half started.
"""

from __future__ import annotations

import os
import re
import socket

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError

MAX_PORT = 65535


def parse_address(text: str) -> tuple[str, int]:
    """Split an address such as ":10170", "127.0.0.1:10170" or "[::1]:10170".

    Args:
        text: Host and port. An empty host means all interfaces, an IPv6 address needs
            brackets, port 0 lets the kernel choose.

    Returns:
        The host without brackets, "" for all interfaces, and the port.

    Raises:
        SettingsError: If the address is malformed.
    """
    match = re.fullmatch(r"(?:\[([^][/@\s]+)\]|([^][:/@\s]*)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > MAX_PORT:
        raise SettingsError(
            f"The address {text!r} is not of the form host:port, [IPv6 address]:port or :port, "
            f"with a port from 0 to {MAX_PORT}."
        )
    return match[1] or match[2], int(match[3])


def bind(address: str) -> socket.socket:
    """Open a listening socket; the kernel queues clients until the server runs.

    Args:
        address: As for `parse_address`. An empty host means IPv4 and IPv6 on all interfaces; a
            name means its IPv4 address if it has one, as in Go.

    Raises:
        ExporterError: If the address is malformed or not available.
    """
    host, port = parse_address(address)
    # Some kernels have no IPv6.
    dual = host in ("", "::") and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_UNSPEC if host else socket.AF_INET
    try:
        # Bytes: for a str, Python loads a third of a MiB of tables.
        name = host.encode("ascii") or None
        results = socket.getaddrinfo(
            name, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, place = min(results, key=lambda result: result[0] != socket.AF_INET)
        # net.core.somaxconn bounds the backlog, too.
        sock = socket.create_server(place, family=family, backlog=1024, dualstack_ipv6=dual)
    except (socket.gaierror, ValueError) as error:
        raise ExporterError(f"Cannot listen on {address!r}: the host is unknown.") from error
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ExporterError(f"Cannot listen on {address!r}: {reason}.") from error
    # Accepted sockets inherit both. Without the first, a body waits 40 ms for an ACK; the second
    # bounds the kernel's buffer of up to 4 MiB.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 128 * 1024)
    return sock
