"""Addresses as Prometheus writes them, and listening sockets for them.

Sockets are opened before anything else starts, so that a wrong address ends the
program with one sentence instead of a half-started exporter.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError

BACKLOG = 1024
"""Connections that wait in the kernel, if net.core.somaxconn lets as many."""
MAX_PORT = 65535

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_REASONS = {
    errno.EADDRINUSE: "another program already listens there",
    errno.EACCES: "permission denied; ports below 1024 need CAP_NET_BIND_SERVICE",
    errno.EPERM: "permission denied",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
    errno.EAFNOSUPPORT: "this machine does not have that address family",
}


def parse_address(text: str) -> tuple[str, int]:
    """Splits an address such as ":10170", "127.0.0.1:10170" or "[::1]:10170".

    Args:
        text: Host and port; an empty host means all interfaces, an IPv6 address
            stands in brackets, port 0 lets the kernel choose.

    Returns:
        The host without brackets, "" for all interfaces, and the port.

    Raises:
        SettingsError: If there is no port, the port is not a number from 0 to 65535
            or the host is not written as above.
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
        raise SettingsError(f"The IPv6 address in {text!r} must stand in brackets: [::1]:10170.")
    if set(host) & set("[]/@") or any(c.isspace() or not c.isprintable() for c in host):
        raise SettingsError(f"The host in {text!r} is not a name or an address.")
    return host, port


def bind(address: str) -> list[socket.socket]:
    """Opens listening sockets for an address.

    Clients can connect from now on; the kernel keeps them until the server runs.

    Args:
        address: As for `parse_address`. No host means both IPv4 and IPv6 on all
            interfaces; a name means all of its addresses that this machine has.

    Returns:
        One socket or, for a name with several addresses, several with one port.

    Raises:
        ExporterError: If the address is badly written, the name is unknown, or the
            address cannot be had; the sentence says why.
    """
    host, port = parse_address(address)
    try:
        if not host:
            return [_open_everywhere(port)]
        return _open_all(_resolve(address, host), port)
    except OSError as error:
        raise ExporterError(_explain(address, error)) from error


def _ipv6(text: str, host: str) -> str:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise SettingsError(f"The host in {text!r} is not an IPv6 address.") from None
    return host


def _resolve(address: str, host: str) -> list[tuple[socket.AddressFamily, str, int]]:
    """The family, address and IPv6 scope of every address of a name, each once."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ExporterError(f"Cannot listen on {address!r}: the host is unknown.") from error
    places = [
        (family, str(place[0]), int(place[3]) if len(place) > 3 else 0)  # noqa: PLR2004 - IPv6 has 4
        for family, _, _, _, place in found
    ]
    return list(dict.fromkeys(places))


def _open_everywhere(port: int) -> socket.socket:
    try:
        return _open(socket.AF_INET6, ("::", port))
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        # A kernel without IPv6.
        return _open(socket.AF_INET, ("0.0.0.0", port))  # noqa: S104 - asked for


def _open_all(
    places: list[tuple[socket.AddressFamily, str, int]], port: int
) -> list[socket.socket]:
    opened: list[socket.socket] = []
    absent: OSError | None = None
    with contextlib.ExitStack() as on_error:
        for family, host, scope in places:
            try:
                sock = _open(family, (host, port, 0, scope) if scope else (host, port))
            except OSError as error:
                # "localhost" is ::1 too on machines that have no IPv6.
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
                continue
            opened.append(on_error.enter_context(sock))
            port = sock.getsockname()[1]  # where it was 0, the other addresses get the same
        on_error.pop_all()
    if absent is not None and not opened:
        raise absent
    return opened


def _open(
    family: socket.AddressFamily, place: tuple[str, int] | tuple[str, int, int, int]
) -> socket.socket:
    # With the protocol named asyncio sets TCP_NODELAY: else a body waits 40 ms for an ACK.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # [::] takes IPv4 too, whatever the sysctl net.ipv6.bindv6only says.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(place)
        # Of two programs that bind with SO_REUSEADDR the second learns it only here.
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _explain(address: str, error: OSError) -> str:
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    return f"Cannot listen on {address!r}: {reason}."
