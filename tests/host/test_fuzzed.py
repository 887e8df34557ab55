"""Any text of a /proc file is a value or unknown, and never an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.host import machine, process
from gpu_bottleneck_exporter.host.cgroup import memberships, stalled_ns
from gpu_bottleneck_exporter.host.descriptors import fields
from gpu_bottleneck_exporter.host.files import MAX_TEXT_BYTES, parse_numbers
from gpu_bottleneck_exporter.host.links import _CONNECTED, _EPOLL_TARGETS
from gpu_bottleneck_exporter.host.mounts import mount_points
from gpu_bottleneck_exporter.host.waits import wait_of, waits_on
from gpu_bottleneck_exporter.workload.identity import owner_in_cgroup
from support.rows import rows
from support.trees import lay

STAT = b"77 (a) R (b) Z 5 77 77 0 -1 0 9 0 6 0 250 50 0 0 20 0 3 0 4242 1 1\n"
STATUS = b"Name:\tx\nState:\tZ (zombie)\nUid:\t0\t0\nThreads:\t3\nCpus_allowed_list:\t0-3,8\n"
IO = b"rchar: 1\nwchar: 2\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 1\ncancelled_write_bytes: 0\n"
CGROUP = b"12:cpu,cpuacct:/slurm/uid_1/job_7\n1:name=systemd:/\n0::/user.slice/x (deleted)\n"
MOUNTS = b"36 35 98:0 / /a\\040b rw master:1 - ext4 /dev/x rw\n"
FDINFO = b"pos:\t0\nflags:\t02\nmnt_id:\t9\nino:\t5\ntfd:  7 events: 19 data: 7\n"
TCP = b"  0: 0100007F:0016 0100007F:0017 01 00:0 00:0 00000000 0 0 12345 1\n"
DEV = b"  eth0: 100 1 1 1 1 1 1 1 200 1 1 1 1 1 1 1\n"
SYSCALL = b"7 0x7ffd 0x1 0xffffffff 0x0 0x0 0x0 0x7ffc 0x7fff\n"
_WORDS = st.sampled_from(
    [b"9" * 5000, b"-1", b"0x", b"\xb2", b"\xd9\xa3", b"1e9", b"(", b")", b"\0"]
)


def texts(like: bytes) -> st.SearchStrategy[bytes]:
    """Anything, and texts like a true one in which some words are odd."""
    words = like.split(b" ")
    odd = st.lists(st.sampled_from(words) | _WORDS | st.binary(max_size=9), max_size=60)
    cut = st.integers(0, len(like)).map(lambda end: like[:end])
    return st.binary(max_size=300) | odd.map(b" ".join) | cut


def reader(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """`read` of a folder in which process 77 has the text in its file `name`."""

    def of(text: bytes, folder: Path) -> object:
        (lay(folder, {f"77/{name}": ""}) / f"77/{name}").write_bytes(text)
        return read(folder)

    return of


def pure(parse: Callable[[bytes], object]) -> Callable[[bytes, Path], object]:
    return lambda text, _: parse(text)


def decoded(parse: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    return lambda text, _: parse(text.decode(errors="replace"))


def reads(folder: Path) -> object:
    item = process.ProcessReader(folder, 77)
    try:
        return item.stat(), item.wait(), item.leader_ns(), item.io()
    finally:
        item.close()


@rows(
    "like, parse",
    {
        "stat": (STAT, pure(process.parse_stat)),
        "stat by its reader": (STAT, reader("stat", reads)),
        "name and state": (STAT, pure(process.comm_and_state)),
        "a thread's stat": (STAT, pure(process.parse_thread_times)),
        "schedstat": (b"1 2 3\n", pure(process.parse_schedstat)),
        "io": (IO, reader("io", reads)),
        "wchan": (b"futex_wait", pure(lambda text: wait_of("S", text))),
        "wchan by its reader": (b"futex_wait", reader("wchan", reads)),
        "syscall": (SYSCALL, pure(lambda text: waits_on(os.getpid(), text))),
        "status": (STATUS, decoded(lambda text: (process.real_uid(text), text))),
        "cpus": (STATUS, decoded(process.allowed_cpus)),
        "a living thread": (STATUS, reader("status", lambda at: process.living_thread(at, 77))),
        "cgroup": (CGROUP, decoded(memberships)),
        "cgroup by its reader": (
            CGROUP,
            reader("cgroup", lambda at: process.control_groups(at, 77)),
        ),
        "owner": (CGROUP, decoded(owner_in_cgroup)),
        "mountinfo": (MOUNTS, reader("mountinfo", lambda at: mount_points(at / "77"))),
        "fdinfo": (FDINFO, decoded(fields)),
        "epoll": (FDINFO, decoded(_EPOLL_TARGETS.findall)),
        "net/tcp": (TCP, decoded(_CONNECTED.findall)),
        "net/dev": (DEV, decoded(machine.network_bytes)),
        "children": (b"1 2 3 ", pure(parse_numbers)),
        "pressure": (b"some avg10=0.00 total=1\n", decoded(stalled_ns)),
        "cmdline": (b"a\0b\0", reader("cmdline", lambda at: process.command_line(at, 77))),
        "environ": (
            b"A=b\0",
            reader("environ", lambda at: process.environment(at, 77, MAX_TEXT_BYTES)),
        ),
    },
)
def test_any_text_is_a_value_or_unknown(
    like: bytes, parse: Callable[[bytes, Path], object], tmp_path: Path
) -> None:
    @given(texts(like))
    def parsed(text: bytes) -> None:
        assert len(repr(parse(text, tmp_path))) <= 8 * MAX_TEXT_BYTES

    parsed()
