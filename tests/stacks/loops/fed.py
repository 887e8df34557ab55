"""Loops that another program feeds, which is not their child: `... fed JOINT` (servers/sidecar.py).

`tar`: the right side of a shell's pipeline that unpacks an archive.
"""

# ruff: noqa: PLC0415 - each joint imports its own library and no other
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import io
import os
import socket
import sys
import tarfile
from typing import Any

from stacks.loops.common import FOLDER, HOST, MEBIBYTE, PORT, Load, ready, train

_BATCH = 64
_SHARE = 3 * MEBIBYTE
"""Bytes of a batch of the pipeline: so many take xz about WAIT to unpack."""


def unix() -> Load:
    """Receive what is sent."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(FOLDER / "batches"))
    return lambda: connection.recv(_BATCH, socket.MSG_WAITALL)


def ask() -> Load:
    """Ask, and wait for the answer."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(FOLDER / "batches"))

    def load() -> bytes:
        connection.sendall(bytes(_BATCH))
        return connection.recv(_BATCH, socket.MSG_WAITALL)

    return load


def fifo() -> Load:
    """Read a FIFO."""
    file = os.open(FOLDER / "batches", os.O_RDONLY)
    return lambda: os.read(file, _BATCH)


def pull(address: str) -> Load:
    """ZeroMQ's PULL."""
    import zmq

    pulling: Any = zmq.Context().socket(zmq.PULL)
    pulling.setsockopt(zmq.RCVHWM, 1)
    pulling.bind(address)
    ready()
    load: Load = pulling.recv
    return load


def pipeline() -> None:
    """Be the shell that joins xz, tar and the loop."""
    archive, packed = FOLDER / "archive.tar.xz", io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=0) as tar:
        member = tarfile.TarInfo("samples")
        member.size = 16 * MEBIBYTE
        tar.addfile(member, io.BytesIO(os.urandom(member.size // 2).hex().encode()))
    archive.write_bytes(packed.getvalue())
    unpack = f"while xz -dc {archive}; do :; done | tar -xif - -O"
    loop = f"{sys.executable} -m stacks.loops.fed stdin"
    os.execvp("sh", ["sh", "-c", f"{unpack} | {loop}"])  # noqa: S606 - the point of it


def standard_input() -> Load:
    """Read the pipe."""
    return lambda: sys.stdin.buffer.read(_SHARE)


def main(joint: str) -> None:
    """Train until killed."""
    if joint == "pipeline":
        pipeline()
    loads: dict[str, Any] = {
        "unix": unix,
        "ask": ask,
        "fifo": fifo,
        "ipc": lambda: pull(f"ipc://{FOLDER / 'batches'}"),
        "tcp": lambda: pull(f"tcp://{HOST}:{PORT}"),
        "pod": lambda: pull(f"tcp://*:{PORT}"),
        "stdin": standard_input,
    }
    train(loads[joint]())


if __name__ == "__main__":
    main(sys.argv[1])
