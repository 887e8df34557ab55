"""Loops that another program feeds, which is not their child: `... fed JOINT` (servers/sidecar.py).

`pipeline`: the right side of a shell's pipeline that unpacks an archive.
"""

# ruff: noqa: PLC0415 - each joint imports its own library and no other
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import io
import os
import socket
import sys
import tarfile
from typing import Any, NoReturn

from stacks.loops.common import FOLDER, MEBIBYTE, PORT, Load
from stacks.loops.gpu import ready

_BATCH = 64
_SHARE = 3 * MEBIBYTE
"""Bytes of a batch of the pipeline: so many take xz about WAIT to unpack."""


def unix() -> Load:
    """Receive what is sent."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(FOLDER / "batches"))
    return lambda: connection.recv(_BATCH, socket.MSG_WAITALL)


def pull() -> Load:
    """ZeroMQ's PULL, from wherever it comes."""
    import zmq

    pulling: Any = zmq.Context().socket(zmq.PULL)
    pulling.setsockopt(zmq.RCVHWM, 1)
    pulling.bind(f"tcp://*:{PORT}")
    ready()
    load: Load = pulling.recv
    return load


def pipeline() -> NoReturn:
    """Be the shell that joins xz, tar and the loop."""
    archive, packed = FOLDER / "archive.tar.xz", io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=0) as tar:
        member = tarfile.TarInfo("samples")
        member.size = 16 * MEBIBYTE
        tar.addfile(member, io.BytesIO(os.urandom(member.size // 2).hex().encode()))
    archive.write_bytes(packed.getvalue())
    unpack = f"while xz -dc {archive}; do :; done | tar -xif - -O"
    loop = f"{sys.executable} -m stacks.loops fed standard_input"
    os.execvp("sh", ["sh", "-c", f"{unpack} | {loop}"])  # noqa: S606 - the point of it


def standard_input() -> Load:
    """Read the pipe."""
    return lambda: sys.stdin.buffer.read(_SHARE)
