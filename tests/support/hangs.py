"""File systems that do not answer, like network ones whose server is down; memory that is late."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.leftovers import mark
from support.programs import Program
from support.tools import missing

LOOKUP, READ, FLUSH = 1, 15, 25
"""Requests, as in linux/fuse.h."""
ANSWERS_LATE = """
import fcntl, mmap, platform
libc = ctypes.CDLL(None, use_errno=True)
uffd = libc.syscall({"x86_64": 323, "aarch64": 282}[platform.machine()], os.O_CLOEXEC)
if uffd < 0: sys.exit(ready("denied"))
fcntl.ioctl(uffd, 0xc018aa3f, bytearray(struct.pack("QQQ", 0xaa, 0, 0)))  # UFFDIO_API
page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
page[:8] = struct.pack("ihh", 0, 0, 0)  # struct pollfd
faults = 0
def answer():
    global faults
    time.sleep(0.5)  # poll has read the page
    registered = bytearray(struct.pack("QQQQ", address, mmap.PAGESIZE, 1, 0))
    fcntl.ioctl(uffd, 0xc020aa00, registered)  # UFFDIO_REGISTER
    page.madvise(mmap.MADV_DONTNEED)
    ready("now")
    while True:
        os.read(uffd, 32)
        faults += 1
        time.sleep(0.15)
        zeros = bytearray(struct.pack("QQQq", address, mmap.PAGESIZE, 0, 0))
        fcntl.ioctl(uffd, 0xc020aa04, zeros)  # UFFDIO_ZEROPAGE
        time.sleep(0.02)  # until it has been read
        page.madvise(mmap.MADV_DONTNEED)
def tell():
    while told(): ready(faults)
for do in (answer, tell): threading.Thread(target=do, daemon=True).start()
libc.poll(ctypes.c_void_p(address), 1, -1)
"""
"""A program whose first thread waits in poll, with arguments in a page that each reader waits for.

Each line is answered by how often the page was read.
"""
EXECUTES = """
kept = os.open(sys.argv[1], os.O_RDONLY | os.O_CLOEXEC)
ready(); told()
os.execv("/bin/sleep", ["sleep", "600"])
"""
"""A program that closes the file that it is given in an execve: a lock is held meanwhile."""
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)
_SERVER = Path(__file__).with_name("unflushed.py")


def _mounted(folder: Path) -> int:
    """Mount FUSE at `folder`; returns the device that its program would serve."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        missing(f"FUSE is missing: {error}")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if _libc.mount(mark().encode(), bytes(folder), b"fuse", 0, options.encode()):
        os.close(device)
        missing(f"mounting is not allowed: {os.strerror(ctypes.get_errno())}")
    return device


@contextmanager
def hanging(folder: Path) -> Iterator[Callable[[], None]]:
    """Make access to `folder` hang until the yielded function is called, or until the end.

    This is FUSE without the program behind it: the kernel waits for its first message. Waiting
    processes get ENOTCONN at the end.
    """
    device = _mounted(folder)
    ended: list[None] = []

    def end() -> None:
        if not ended:
            ended.append(None)
            os.close(device)

    try:
        yield end
    finally:
        end()
        _libc.umount2(bytes(folder), _MNT_DETACH)


@contextmanager
def unanswering(folder: Path, request: int, late_seconds: float | None = None) -> Iterator[Program]:
    """A file of any name in `folder`, of a file system that never answers one kind of `request`.

    Or that answers reads and writes after `late_seconds`.

    Yields its program, which tells after each line who, by thread, has sent one so far; after
    `answer` it answers. Who still waits at the end gets ENOTCONN.
    """
    device = _mounted(folder)
    pipe = subprocess.PIPE
    late = () if late_seconds is None else (str(late_seconds),)
    command = (sys.executable, str(_SERVER), str(device), str(request), *late)
    # Another process: if this one were killed, its own threads would wait for it for ever.
    server = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=[device])
    os.close(device)
    try:
        yield Program(server)
    finally:
        server.communicate()
        _libc.umount2(bytes(folder), _MNT_DETACH)
