"""A program that feeds the loop without being its child: `... NAME JOINT WORK`.

JOINT: unix, fifo, ipc or tcp (ZeroMQ's PUSH), ask (a tokeniser that answers over a UNIX socket),
gateway and gateway-anew (it asks the loop over HTTP, on one connection or on many); pod and
pod-gateway: tcp and gateway from another network namespace. WORK is what it does for each batch:
burn, disk, fetch, rest, hardly (anything).
"""

# ruff: noqa: PLC0415 - each joint imports its own library and no other
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import ctypes
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from stacks.loops.common import HOST, QUICK, WAIT, Load, burn, fetch
from stacks.loops.files import mounted
from stacks.servers.listen import FOLDER, PORT, announce

_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET (linux/sched.h)."""
BATCH = bytes(64)
WORKS: dict[str, Callable[[], Load]] = {
    "burn": lambda: partial(burn, WAIT),
    "disk": mounted,
    "fetch": lambda: fetch,
    "hardly": lambda: partial(burn, QUICK),
    "rest": lambda: partial(time.sleep, WAIT),
}


def unix(name: str, work: Load, *, asked: bool = False) -> None:
    """Send each batch to whoever is connected; if `asked`, only when asked."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(FOLDER / "batches"))
        server.listen()
        announce(name, 0)
        connection, _ = server.accept()
        while True:
            if asked:
                connection.recv(len(BATCH), socket.MSG_WAITALL)
            work()
            connection.sendall(BATCH)


def fifo(name: str, work: Load) -> None:
    """Write each batch to a FIFO."""
    os.mkfifo(FOLDER / "batches")
    announce(name, 0)
    with open(FOLDER / "batches", "wb", buffering=0) as file:
        while True:
            work()
            file.write(BATCH)


def push(name: str, work: Load, address: str) -> None:
    """Push each batch; few are queued."""
    import zmq

    pushing: Any = zmq.Context().socket(zmq.PUSH)
    pushing.setsockopt(zmq.SNDHWM, 1)
    pushing.connect(address)
    announce(name, 0)
    while True:
        work()
        pushing.send(BATCH)


def gateway(name: str, work: Load, host: str = HOST, *, anew: bool = False) -> None:
    """Work on a request, then ask the loop; `anew`: on a connection of its own."""
    announce(name, PORT)
    connection = http.client.HTTPConnection(host, PORT, timeout=30)
    while True:
        work()
        try:
            connection.request("GET", "/work")
            connection.getresponse().read()
            if anew:
                connection.close()
        except OSError:
            connection.close()  # it is not up yet


def enter_pod() -> str:
    """Enter a network namespace of our own; the address of the machine as it is seen there."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "unshare")
    there = f"{os.getppid()}"  # the namespace of whoever measures
    network, ours = f"10.{100 + PORT // 16384}.{PORT // 64 % 256}", PORT % 64 * 4
    link = f"stacks{PORT}"
    for command in (
        f"ip link add eth0 type veth peer name {link} netns {there}",
        f"ip addr add {network}.{ours + 2}/30 dev eth0",
        "ip link set eth0 up",
        f"nsenter -t {there} -n ip addr add {network}.{ours + 1}/30 dev {link}",
        f"nsenter -t {there} -n ip link set {link} up",
    ):
        subprocess.run(command.split(), check=True)
    return f"{network}.{ours + 1}"


def main(name: str, joint: str, kind: str) -> None:
    """Feed until killed."""
    joints: dict[str, Callable[[str, Load], None]] = {
        "unix": unix,
        "ask": partial(unix, asked=True),
        "fifo": fifo,
        "ipc": partial(push, address=f"ipc://{FOLDER / 'batches'}"),
        "tcp": partial(push, address=f"tcp://{HOST}:{PORT}"),
        "pod": lambda to, work: push(to, work, f"tcp://{enter_pod()}:{PORT}"),
        "gateway": gateway,
        "gateway-anew": partial(gateway, anew=True),
        "pod-gateway": lambda to, work: gateway(to, work, enter_pod()),
    }
    joints[joint](name, WORKS[kind]())
