"""Asking the kernel for single TCP sockets of our own network namespace (sock_diag(7)).

/proc/net/tcp lists all of them, also those that ended in the last minute, and takes 10 ms at least:
a client that connects anew for each request is gone by then. This takes 20 µs.
"""

from __future__ import annotations

import socket
import struct

from gpu_bottleneck_exporter.host.sockets import Endpoint

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence number, port."""
_REQUEST = struct.Struct("=BBBBI 2s2s16s16sIQ")
"""struct inet_diag_req_v2: family, protocol, extensions, padding, states; struct inet_diag_sockid:
ports, addresses, interface, cookie."""
_ANSWER = struct.Struct("=16x4x 2s2s44x 16xI")
"""struct inet_diag_msg after its header: ports of its sockid, and the inode."""
_ANY_STATE, _NO_COOKIE = 2**32 - 1, 2**64 - 1
_MOST_BYTES = 4096
_IPV4_BYTES = 4


def inode_of(local: Endpoint, remote: Endpoint) -> int:
    """That of the socket with these ends; 0 if there is none.

    Raises OSError if the kernel may not be asked.
    """
    ports = [end.port.to_bytes(2, "big") for end in (local, remote)]
    addresses = [end.address.ljust(16, b"\0") for end in (local, remote)]
    family = socket.AF_INET if len(local.address) == _IPV4_BYTES else socket.AF_INET6
    about = (*ports, *addresses, 0, _NO_COOKIE)
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE, *about)
    size = _HEADER.size + _REQUEST.size
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(0)  # it has answered by the time that it takes the question
        kernel.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0) + request)
        answer = kernel.recv(_MOST_BYTES)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return 0
    *found, inode = _ANSWER.unpack_from(answer)
    return inode if found == ports else 0  # else it is one that listens
