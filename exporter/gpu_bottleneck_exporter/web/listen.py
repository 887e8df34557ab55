"""Addresses as Prometheus writes them, and a listening socket for one.

The socket is opened before anything else starts, so that a wrong address ends the program with one
sentence instead of a half-started exporter.
"""

from __future__ import annotations

import os
import re
import socket

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError

BACKLOG = 1024
"""Connections that may wait in the kernel, if net.core.somaxconn allows as many."""
MAX_PORT = 65535
_UNSENT_BYTES = 128 * 1024
"""That the kernel keeps for a client that does not read; without a bound, up to 4 MiB."""
_ADDRESS = re.compile(r"(?:\[([^][/@\s]+)\]|([^][:/@\s]*)):([0-9]{1,5})")


def parse_address(text: str) -> tuple[str, int]:
    """Split an address such as ":10170", "127.0.0.1:10170" or "[::1]:10170".

    Args:
        text: Host and port. An empty host means all interfaces, an IPv6 address needs
            brackets, port 0 lets the kernel choose.

    Returns:
        The host without brackets, "" for all interfaces, and the port.

    Raises:
        SettingsError: If it is written in another way.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[3]) > MAX_PORT:
        raise SettingsError(
            f"The address {text!r} is not of the form host:port, [IPv6 address]:port or :port, "
            f"with a port from 0 to {MAX_PORT}."
        )
    return found[1] or found[2], int(found[3])


def bind(address: str) -> socket.socket:
    """Open a listening socket for an address.

    Clients can connect from now on; the kernel queues them until the server runs.

    Args:
        address: As for `parse_address`. An empty host means IPv4 and IPv6 on all interfaces; a
            name means one of its addresses, IPv4 if it has one, as for programs in Go.

    Raises:
        ExporterError: If the address is malformed or not available; the sentence says why.
    """
    host, port = parse_address(address)
    # Some kernels have no IPv6. [::] accepts IPv4 too, whatever net.ipv6.bindv6only says.
    dual = host in ("", "::") and socket.has_dualstack_ipv6()
    wanted = socket.AF_INET6 if dual else socket.AF_UNSPEC if host else socket.AF_INET
    try:
        # As bytes: for a text, Python loads its tables of Unicode, a third of a MiB.
        name = host.encode("ascii") or None
        found = socket.getaddrinfo(name, port, wanted, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, place = min(found, key=lambda one: one[0] != socket.AF_INET)
        sock = socket.create_server(place, family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    except (socket.gaierror, ValueError) as error:
        raise ExporterError(f"Cannot listen on {address!r}: the host is unknown.") from error
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ExporterError(f"Cannot listen on {address!r}: {reason}.") from error
    # Both are inherited by accepted sockets. Without the first, a body waits 40 ms for an ACK.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNSENT_BYTES)
    return sock
