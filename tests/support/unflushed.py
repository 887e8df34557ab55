"""Serves FUSE from the device with the given number, but leaves one kind of request unanswered.

Reads and writes are answered after these seconds, if given. See `hangs`.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import struct
import sys
import time

_REQUEST, _ANSWER = struct.Struct("=IIQQIIIHH"), struct.Struct("=IiQ")
"""struct fuse_in_header: its size, opcode, number, node, uid, gid, pid; fuse_out_header."""
_LOOKUP, _GETATTR, _OPEN, _READ, _WRITE, _RELEASE, _FLUSH, _INIT = 1, 3, 14, 15, 16, 18, 25, 26
_DIRECT = 1
"""FOPEN_DIRECT_IO: the kernel caches nothing."""
_AT = struct.Struct("=40xQQI")
"""struct fuse_read_in and fuse_write_in after the header: handle, offset, size."""
_SIZE = 2**20
"""Size of the file, so that reading it is a request."""
_SILENT = frozenset({2, 36, 42})
"""FUSE_FORGET, FUSE_INTERRUPT and FUSE_BATCH_FORGET want no answer."""
_FILE = 2
"""The number of the file; the folder's is 1."""


def _serve(device: int, unanswered: int, late_seconds: float | None) -> None:
    waiting: list[int] = []
    held: list[int] = []
    answers = False
    poll = select.poll()  # select() knows no descriptor above 1023
    poll.register(0, select.POLLIN)
    poll.register(device, select.POLLIN)
    while True:
        readable = {descriptor for descriptor, _ in poll.poll()}
        if 0 in readable:
            line = os.read(0, 100)
            if not line:
                return
            answers |= line == b"answer\n"
            os.write(1, f"{' '.join(map(str, waiting))}\n".encode())
        if device in readable:
            request = os.read(device, 1 << 21)
            _, code, number, node, _, _, pid, *_ = _REQUEST.unpack_from(request)
            if late_seconds is not None and code in (_READ, _WRITE):
                time.sleep(late_seconds)
                *_, size = _AT.unpack_from(request)
                _answer(
                    device, number, bytes(size) if code == _READ else struct.pack("=II", size, 0)
                )
            elif late_seconds is not None and code == _OPEN:
                _answer(device, number, struct.pack("=QII", 0, _DIRECT, 0))
            elif code == unanswered:
                waiting.append(pid)
                held.append(number)
            elif code not in _SILENT:
                _answer(device, number, *_content(code, node))
        while answers and held:
            _answer(device, held.pop())


def _answer(device: int, number: int, content: bytes = b"", error: int = 0) -> None:
    os.write(device, _ANSWER.pack(_ANSWER.size + len(content), -error, number) + content)


def _content(code: int, node: int) -> tuple[bytes, int]:
    """The answer to a request, and its error code (linux/fuse.h)."""
    if code == _INIT:
        return struct.pack("=IIIIHHI40x", 7, 31, 65536, 0, 12, 9, 65536), 0
    if code == _LOOKUP:
        return struct.pack("=QQQQII", _FILE, 0, 0, 0, 0, 0) + _attributes(_FILE), 0
    if code == _GETATTR:
        return struct.pack("=QII", 0, 0, 0) + _attributes(node), 0
    if code in (_OPEN, _RELEASE, _FLUSH):
        return bytes(16) if code == _OPEN else b"", 0
    return b"", errno.ENOSYS


def _attributes(node: int) -> bytes:
    mode = stat.S_IFREG | 0o666 if node == _FILE else stat.S_IFDIR | 0o777
    return struct.pack("=6Q10I", node, _SIZE, *(0,) * 7, mode, 1, *(0,) * 5)


if __name__ == "__main__":
    late = float(sys.argv[3]) if sys.argv[3:] else None
    _serve(int(sys.argv[1]), int(sys.argv[2]), late)
