"""A program that feeds the loop without being its child: `... NAME JOINT WORK`.

JOINT: unix, tcp (ZeroMQ's PUSH), or pod: that from another network namespace. WORK is what it does
for each batch: burn, disk, fetch, rest, hardly (anything).
"""

# ruff: noqa: PLC0415 - each joint imports its own library and no other
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from stacks.loops.common import FOLDER, HOST, PORT, QUICK, WAIT, Load, burn, fetch
from stacks.loops.files import mounted
from stacks.servers.listen import announce

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


def unix(name: str, work: Load) -> None:
    """Send each batch to whoever is connected."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(FOLDER / "batches"))
        server.listen()
        announce(name, 0)
        connection, _ = server.accept()
        while True:
            work()
            connection.sendall(BATCH)


def push(name: str, work: Load, host: str = HOST) -> None:
    """Push each batch; few are queued."""
    import zmq

    pushing: Any = zmq.Context().socket(zmq.PUSH)
    pushing.setsockopt(zmq.SNDHWM, 1)
    pushing.connect(f"tcp://{host}:{PORT}")
    announce(name, 0)
    while True:
        work()
        pushing.send(BATCH)


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
        "tcp": push,
        "pod": lambda to, work: push(to, work, enter_pod()),
    }
    joints[joint](name, WORKS[kind]())
