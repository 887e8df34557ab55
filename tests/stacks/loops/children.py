"""Loops that wait on a socket for a process of their own: `... children WHO [WHAT]`."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from stacks.loops import sockets
from stacks.loops.common import FORK, HOST, QUICK, WAIT, Load, burn
from stacks.loops.gpu import hold, train
from stacks.servers.listen import announce

_BATCH = 65_000
"""Bytes of a batch; a datagram holds no more."""
_PHASE_SECONDS = 0.3
"""Time for which a generator makes rollouts, and a trainer trains on them."""
WORKS: dict[str, Callable[[], Load]] = {
    "burn": lambda: partial(burn, WAIT),
    "quick": lambda: partial(burn, QUICK),
    "fetch": sockets.blocking,
    "sleep": lambda: partial(time.sleep, WAIT),
}


def simulator(what: str) -> Load:
    """Ask a child over a UNIX socket that keeps messages apart, as a simulator's client does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    FORK.Process(target=_answer, args=(theirs, what), daemon=True).start()

    def step() -> None:
        ours.send(b"action")
        ours.recv(_BATCH)

    return step


def _answer(connection: socket.socket, what: str) -> NoReturn:
    work = WORKS[what]()
    while True:
        connection.recv(_BATCH)
        work()
        connection.send(bytes(_BATCH // 2))


def runtime(what: str) -> Load:
    """Receive rows from a child that listens on IPv6, as Java does; its own children make them."""
    server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    address = HOST, server.getsockname()[1]
    FORK.Process(target=_hand_on, args=(server, what)).start()
    connection = socket.create_connection(address)
    server.close()
    return lambda: connection.recv(_BATCH, socket.MSG_WAITALL)


def _hand_on(server: socket.socket, what: str) -> NoReturn:
    ours, theirs = socket.socketpair()
    FORK.Process(target=_answer, args=(theirs, what), daemon=True).start()
    connection, _ = server.accept()
    while True:
        ours.send(b"more")
        ours.recv(_BATCH // 2, socket.MSG_WAITALL)
        connection.sendall(bytes(_BATCH))


def rollouts(role: str = "trainer") -> NoReturn:
    """Ask a server on another GPU for rollouts, then train on them."""
    if role == "generator":
        _generate()
    subprocess.Popen([sys.executable, "-m", "stacks.loops", "children", "rollouts", "generator"])
    gpu, connection = hold(0), sockets.connected("rollouts")
    while True:
        connection.sendall(b"more")
        connection.recv(_BATCH, socket.MSG_WAITALL)
        gpu.run(_PHASE_SECONDS)


def _generate() -> NoReturn:
    gpu = hold(1)
    server = socket.create_server((HOST, 0))
    announce("rollouts", server.getsockname()[1])
    connection, _ = server.accept()
    while connection.recv(_BATCH):
        gpu.run(_PHASE_SECONDS)
        connection.sendall(bytes(_BATCH))
    sys.exit("the trainer has ended")


LOOPS: dict[str, Callable[[str], Load]] = {"simulator": simulator, "runtime": runtime}


def main(who: str, what: str = "trainer") -> None:
    """Train forever."""
    if who == "rollouts":
        rollouts(what)
    train(LOOPS[who](what))
