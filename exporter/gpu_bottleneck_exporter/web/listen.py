"""Addresses as Prometheus writes them, and listening sockets for them.

Sockets are opened before anything else starts, so that a wrong address ends the program with one
sentence instead of a half-started exporter.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
from typing import Any

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError

BACKLOG = 1024
"""Connections that may wait in the kernel, if net.core.somaxconn allows as many."""
MAX_PORT = 65535
_UNSENT_BYTES = 128 * 1024
"""That the kernel keeps for a client that does not read; without a bound, up to 4 MiB."""

_Place = tuple[socket.AddressFamily, tuple[Any, ...]]
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_REASONS = {
    errno.EADDRINUSE: "another program already listens there",
    errno.EACCES: "permission denied; ports below 1024 need CAP_NET_BIND_SERVICE",
    errno.EPERM: "permission denied",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
    errno.EAFNOSUPPORT: "this machine does not have that address family",
}


def parse_address(text: str) -> tuple[str, int]:
    """Split an address such as ":10170", "127.0.0.1:10170" or "[::1]:10170".

    Args:
        text: Host and port. An empty host means all interfaces, an IPv6 address needs
            brackets, port 0 lets the kernel choose.

    Returns:
        The host without brackets, "" for all interfaces, and the port.

    Raises:
        SettingsError: If there is no port, the port is not a number from 0 to 65535, or the
            host is not written as above.
    """
    host, colon, port_text = text.rpartition(":")
    if not colon or "]" in port_text:
        raise SettingsError(f"The address {text!r} has no port; write host:port or :port.")
    if re.fullmatch("[0-9]{1,5}", port_text) is None or int(port_text) > MAX_PORT:
        raise SettingsError(f"The port in {text!r} is not a number from 0 to {MAX_PORT}.")
    port = int(port_text)
    if host.startswith("[") and host.endswith("]"):
        return _ipv6(text, host[1:-1]), port
    if ":" in host:
        raise SettingsError(f"The IPv6 address in {text!r} must be in brackets: [::1]:10170.")
    if set(host) & set("[]/@") or any(c.isspace() or not c.isprintable() for c in host):
        raise SettingsError(f"The host in {text!r} is not a name or an address.")
    return host, port


def bind(address: str) -> list[socket.socket]:
    """Open listening sockets for an address.

    Clients can connect from now on; the kernel queues them until the server runs.

    Args:
        address: As for `parse_address`. An empty host means IPv4 and IPv6 on all interfaces; a
            name means all of its addresses that this machine has.

    Returns:
        One socket or, for a name with several addresses, several with the same port.

    Raises:
        ExporterError: If the address is malformed, the name is unknown, or the address is not
            available; the sentence says why.
    """
    host, port = parse_address(address)
    try:
        if not host:
            return [_open_everywhere(port)]
        return _open_each(_resolve(address, host), port)
    except OSError as error:
        raise ExporterError(_explain(address, error)) from error


def _ipv6(text: str, host: str) -> str:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise SettingsError(f"The host in {text!r} is not an IPv6 address.") from None
    return host


def _resolve(address: str, host: str) -> list[_Place]:
    """The addresses of a name, each once."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ExporterError(f"Cannot listen on {address!r}: the host is unknown.") from error
    return list(dict.fromkeys((family, place) for family, _, _, _, place in found))


def _open_everywhere(port: int) -> socket.socket:
    try:
        return _open(socket.AF_INET6, ("::", port))
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        # A kernel without IPv6.
        return _open(socket.AF_INET, ("0.0.0.0", port))  # noqa: S104 - asked for


def _open_each(places: list[_Place], port: int) -> list[socket.socket]:
    """One socket per place; port 0 is what the kernel chooses for the first."""
    opened: list[socket.socket] = []
    with contextlib.ExitStack() as on_error:
        for place in places:
            family, (host, _, *scope) = place
            try:
                sock = _open(family, (host, port, *scope))
            except OSError as error:
                # "localhost" is ::1 too on machines that have no IPv6: one of them will do.
                none_left = place is places[-1] and not opened
                if none_left or error.errno not in _NOT_HERE:
                    raise
                continue
            opened.append(on_error.enter_context(sock))
            port = sock.getsockname()[1]  # if it was 0, all addresses use this one
        on_error.pop_all()
    return opened


def _open(family: socket.AddressFamily, place: tuple[Any, ...]) -> socket.socket:
    # [::] accepts IPv4 too, whatever the sysctl net.ipv6.bindv6only says.
    dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    sock = socket.create_server(place, family=family, backlog=BACKLOG, dualstack_ipv6=dual)
    # Both are inherited by accepted sockets. Without the first, a body waits 40 ms for an ACK.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNSENT_BYTES)
    return sock


def _explain(address: str, error: OSError) -> str:
    number = error.errno or 0
    reason = _REASONS.get(number) or (os.strerror(number) if number else str(error))
    return f"Cannot listen on {address!r}: {reason}."
