"""Rings as kernels from 5.10 on show them, and those of real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host import rings as module
from gpu_bottleneck_exporter.host.rings import (
    Ring,
    distance,
    parse_ring,
    read_rings,
    reads_files,
    uses_aio,
)
from support.programs import ended, program
from support.rows import rows
from support.trees import lay, links

PROC = Path("/proc")
POSITION = "pos:\t0\nflags:\t02000002\nmnt_id:\t14\n"
OLD = POSITION + "SqThread:\t-1\nSqThreadCpu:\t-1\nUserFiles:\t{}\nUserBufs:\t0\nPollList:\n{}"
"""Linux 5.10 and 5.15."""
QUEUES = (
    "SqMask:\t0x7\nSqHead:\t{sent}\nSqTail:\t{sent}\nCachedSqHead:\t{sent}\n"
    "CqMask:\t0xf\nCqHead:\t{done}\nCqTail:\t{done}\nCachedCqTail:\t{done}\nSQEs:\t0\nCQEs:\t1\n"
    "    3: user_data:0, res:5, flag:0\n"
)
"""Fields since Linux 5.16."""
END = "UserFiles:\t2\n    0: /data/x: y\n    1: socket:[99]\nUserBufs:\t1\n    0: 0x7f/4096\n"
POLL = "  op=27, task_works=0\n"


def text(sent: int, done: int, *, polls: int = 0) -> str:
    """Text of Linux 6.18."""
    queues = QUEUES.format(sent=sent, done=done)
    return f"{POSITION}{queues}SqThread:\t-1\n{END}PollList:\n{POLL * polls}CqOverflowList:\n"


@rows(
    "shown, ring",
    {
        "5.10, waits for a socket": (OLD.format(0, POLL), Ring(4, 1, None, 0)),
        "5.15, nothing to poll": (
            OLD.format("2\n    0: TCPv6\n    1: train.bin", ""),
            Ring(4, 0, None, 0, ("train.bin",)),
        ),
        "5.15, a table with holes": (
            OLD.format("2\n    0: <none>\n    1: UDP", ""),
            Ring(4, 0, None, 0),
        ),
        "6.18, all done": (text(9, 9), Ring(4, 0, 0, 9, ("/data/x: y",))),
        "6.18, three in flight, one of which polls": (
            text(9, 6, polls=1),
            Ring(4, 1, 2, 6, ("/data/x: y",)),
        ),
        "6.18, counters that wrapped": (
            text(1, 2**32 - 1),
            Ring(4, 0, 2, 2**32 - 1, ("/data/x: y",)),
        ),
        "6.18, a request that completes again and again": (
            text(5, 90, polls=1),
            Ring(4, 1, None, 0, ("/data/x: y",)),
        ),
        "its lock is taken": (POSITION, None),
        "no number": (text(9, 9).replace("CachedCqTail:\t9", "CachedCqTail:\tx"), None),
    },
)
def test_rings_by_kernel_version(shown: str, ring: Ring | None) -> None:
    assert parse_ring(4, shown) == ring


def test_positions_wrap() -> None:
    assert [distance(2, 5), distance(5, 2), distance(2**32 - 1, 1), distance(1, 2**32 - 1)] == [
        3,
        -3,
        2,
        -2,
    ]


def test_only_rings_are_read_and_few_of_them(tmp_path: Path) -> None:
    shown = {f"7/fdinfo/{number}": text(number, 0) for number in range(12)}
    lay(tmp_path, shown)
    links(tmp_path / "7/fd", "/data/x", *(["anon_inode:[io_uring]"] * 8))
    assert [ring.number for ring in read_rings(tmp_path, 7, range(3, 12)) or ()] == [4, 5, 6]
    assert read_rings(tmp_path, 7, []) == []
    assert read_rings(tmp_path, 7, [50]) == []
    (tmp_path / "7/fdinfo/4").write_text(POSITION)  # while its lock is taken
    assert read_rings(tmp_path, 7, [4]) == []


def test_a_ring_with_more_text_than_is_read_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, {"7/fdinfo/3": text(9, 1)})
    links(tmp_path / "7/fd", "anon_inode:[io_uring]")
    assert read_rings(tmp_path, 7, [3])
    monkeypatch.setattr(module, "_MAX_FDINFO_BYTES", 200)
    assert read_rings(tmp_path, 7, [3]) is None


@rows(
    "code, reads",
    {
        "to read": ("f = open('/etc/passwd')", True),
        "to write": ("f = open(sys.argv[1] + '/log', 'w')", False),
        "to do both": ("f = open(sys.argv[1] + '/log', 'w+')", True),
        "a device": ("f = open('/dev/zero')", False),
        "a pipe": ("f = os.fdopen(os.pipe()[0])", False),
    },
)
def test_which_files_are_read(tmp_path: Path, code: str, *, reads: bool) -> None:
    with program(f"{code}; ready(f.fileno()); told()", tmp_path) as process:
        assert reads_files(PROC, process.pid, [99, int(process.words[0])]) is reads


SETS_UP = "c = ctypes.c_ulong(); ctypes.CDLL(None).syscall({}, 8, ctypes.byref(c)); "


@rows("code, uses", {"AIO": (SETS_UP.format("NUMBER"), True), "nothing": ("", False)})
def test_users_of_kernel_aio(code: str, *, uses: bool) -> None:
    number = "206 if os.uname().machine == 'x86_64' else 0"
    with program(code.replace("NUMBER", number) + "ready(); told()") as process:
        assert uses_aio(PROC, process.pid) is uses


def test_a_process_that_is_gone_has_nothing() -> None:
    pid = ended()
    assert not read_rings(PROC, pid, [3])
    assert not reads_files(PROC, pid, [3])
    assert not uses_aio(PROC, pid)
