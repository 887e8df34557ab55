"""The kernel names the socket at the other end of a connection, whatever else there is."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from gpu_bottleneck_exporter.host.links import inode_of
from gpu_bottleneck_exporter.host.sockets import Endpoint, Ends

LOOPBACK = "127.0.0.1"


@pytest.fixture(
    params=[
        pytest.param((LOOPBACK, LOOPBACK), id="IPv4"),
        pytest.param(("::1", "::1"), id="IPv6"),
        pytest.param(("::", LOOPBACK), id="an IPv6 socket that an IPv4 client is connected with"),
    ]
)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client, and its connection at the server."""
    listens, reached = request.param
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    server = socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::")
    with server, socket.create_connection((reached, server.getsockname()[1])) as client:
        connection, _ = server.accept()
        with connection:
            yield client, connection


def end(name: tuple[str, int]) -> Endpoint:
    address = ip_address(name[0])
    return Endpoint((getattr(address, "ipv4_mapped", None) or address).packed, name[1])


def ends(one: socket.socket) -> Ends:
    return end(one.getsockname()[:2]), end(one.getpeername()[:2])


def test_each_end_is_found(pair: tuple[socket.socket, socket.socket]) -> None:
    wanted = [os.fstat(one.fileno()).st_ino for one in pair]
    assert [inode_of(*ends(one)) for one in pair] == wanted


def test_a_connection_that_is_none_has_none(pair: tuple[socket.socket, socket.socket]) -> None:
    client, connection = pair
    names = ends(client), ends(connection)
    client.close()
    connection.close()
    assert [inode_of(*one) for one in names] == [0, 0]


def test_who_only_listens_is_at_no_end() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        here = end(server.getsockname())
        assert inode_of(here, Endpoint(here.address, 1)) == 0
