"""Waits of threads, by recorded channels and by real processes that block."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.waits import (
    Wait,
    asleep_in,
    awaited_child,
    wait_of,
    waits_on,
)
from support.programs import Program, ended, program
from support.rows import rows
from support.waiting import until

PROC = Path("/proc")
SERVER = "server = socket.create_server(('127.0.0.1', 0)); port = server.getsockname()[1]\n"
CONNECTED = SERVER + "c = connect(port); a, _ = server.accept()\n"
PAIR = "a, b = socket.socketpair()\n"
PIPES = "r, w = os.pipe(); q, v = os.pipe()\n"
ON_C = f"{CONNECTED}ready(c.fileno()); "
ON_SERVER = f"{SERVER}ready(server.fileno()); "
FULL = f"{SERVER}server.listen(0); full = connect(port); select.select([server], [], [])\n"
LIBC = "ctypes.CDLL(None)"
POLL = "p = select.poll(); "
by_number = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="system calls are told by number"
)


CHANNELS: dict[Wait, list[str | None]] = {
    Wait.UNKNOWN: [None, "", "0"],
    Wait.DISK: [
        *("request_wait_answer", "fuse_dev_do_write", "rpc_wait_bit_killable"),
        *("nfs_wait_bit_killable", "nfs4_delay_killable", "cl_sync_io_wait", "ptlrpc_set_wait"),
        *("ceph_osdc_wait_request", "netfs_wait_for_read", "p9_client_rpc"),
    ],
    Wait.RING: ["io_cqring_wait", "io_cqring_schedule_timeout"],
    Wait.AIO: ["read_events"],
    Wait.SOCKET: [
        *("sk_wait_data", "sk_stream_wait_memory", "inet_wait_for_connect", "wait_woken"),
        "__skb_wait_for_more_packets",
    ],
    Wait.ACCEPT: ["inet_csk_accept"],
    Wait.LOCK: ["futex_wait_queue_me", "__futex_wait", "do_semtimedop", "futex_wait_queue"],
    Wait.PIPE: ["pipe_read", "anon_pipe_write", "anon_pipe_read", "unix_stream_read_generic"],
    Wait.POLL: ["do_poll.constprop.0", "do_sys_poll", "do_select", "ep_poll", "do_epoll_wait"],
    Wait.TIMER: ["hrtimer_nanosleep"],
    Wait.CHILD: ["do_wait", "kernel_wait4"],
    Wait.FROZEN: ["do_freezer_trap", "get_signal"],
    Wait.OTHER: ["some_new_place", "nvidia_poll", "kfd_wait_on_events", "vm_mmap_pgoff"],
}
"""Wait channels of a task that sleeps interruptibly."""
LETTERS: dict[Wait, list[tuple[str, str | None]]] = {
    Wait.RUN: [("R", "0"), ("R", None), ("R", "futex_wait_queue")],
    Wait.DISK: [
        *(("D", "io_schedule"), ("D", "0"), ("D", None), ("D", "some_new_place")),
        *(("D", "folio_wait_bit_common"), ("D", "rpc_wait_bit_killable"), ("D", "filemap_fault")),
        *(("D", "nvme_submit_sync_cmd"), ("D", "nvmf_fail"), ("D", "nvfs_io_start_op")),
        *(("D", "nvdimm_flush"), ("D", "rwsem_down_write_slowpath"), ("D", "balance_dirty_pages")),
        *(("D", "ext4_file_write_iter"), ("K", "request_wait_answer")),
    ],
    Wait.DRIVER: [
        *(("D", name) for name in ("os_acquire_rwlock_write", "os_acquire_semaphore", "uvm_ioctl")),
        *(("D", name) for name in ("nvidia_unlocked_ioctl", "nv_lock_rwsem", "_nv012345rm")),
        *(("D", name) for name in ("rm_ioctl", "nvUvmInterfaceOpen", "dma_fence_default_wait")),
    ],
    Wait.PROGRAM: [
        *(("D", name) for name in ("kernel_clone", "_do_fork", "vm_mmap_pgoff", "__vm_munmap")),
        *(("D", name) for name in ("do_madvise", "lock_mm_and_find_vma", "do_user_addr_fault")),
    ],
    Wait.MEMORY: [
        *(("D", f"{__}mem_cgroup_handle_over_high") for __ in ("", "__")),
        *(("K", "mem_cgroup_oom_synchronize"), ("D", "throttle_direct_reclaim")),
    ],
    Wait.FROZEN: [("D", "__refrigerator")],
    Wait.LOCK: [("D", "futex_wait_queue")],
    Wait.STOPPED: [("T", "do_signal_stop"), ("t", "ptrace_stop"), ("T", "get_signal")],
    Wait.GONE: [("Z", "0"), ("X", None)],
}


def test_a_state_letter_and_a_channel_make_a_wait() -> None:
    values = [
        (result, "S", channel) for result, channels in CHANNELS.items() for channel in channels
    ]
    values += [(result, *pair) for result, pairs in LETTERS.items() for pair in pairs]
    wrong = {
        (letter, channel): outcome
        for expected, letter, channel in values
        if (outcome := wait_of(letter, None if channel is None else channel.encode())) != expected
    }
    assert wrong == {}
    of_letters = {Wait.DISK, Wait.FROZEN, Wait.UNKNOWN, Wait.OTHER}
    for outcome, channels in CHANNELS.items():
        alone = {asleep_in(channel.encode()) for channel in channels if channel}
        assert alone == {None if outcome in of_letters else outcome}


MMAP, MSYNC, READ, VFORK = (9, 26, 0, 58) if platform.machine() == "x86_64" else (222, 227, 63, 220)


@by_number
@rows(
    "channel, call, found",
    {
        "mmap": ("rwsem_down_write_slowpath", f"{MMAP} 0x0", Wait.PROGRAM),
        "before Linux 5.3": ("call_rwsem_down_read_failed", f"{MMAP} 0x0", Wait.PROGRAM),
        "a page fault": ("rwsem_down_read_slowpath", "-1 0x7ffc 0x7f00", Wait.PROGRAM),
        "a file's": ("rwsem_down_read_slowpath", f"{READ} 0x3", Wait.DISK),
        "a file's, mapped": ("rwsem_down_write_slowpath", f"{MSYNC} 0x3", Wait.DISK),
        "unknown": ("rwsem_down_read_slowpath", "running", Wait.DISK),
        "no channel, fork": ("0", f"{VFORK} 0x0", Wait.PROGRAM),
        "no channel, a file's": ("0", f"{READ} 0x3", Wait.DISK),
        "no channel, a page fault": ("0", "-1 0x7ffc 0x7f00", Wait.DISK),
        "no channel, no call": ("0", "running", Wait.DISK),
    },
)
def test_the_call_shows_more_than_the_channel(channel: str, call: str, found: Wait) -> None:
    assert wait_of("D", channel.encode(), call.encode) is found


def asleep(one: Program) -> bytes:
    """The call that it has come to and sleeps in; empty before that."""
    state = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0]
    call = Path(f"/proc/{one.pid}/syscall").read_bytes()
    return call if state == "S" and call != b"running\n" else b""


MANY = f"""
{POLL}
for r in (many := [os.pipe()[0] for _ in range(200)]):
    p.register(r)
ready(*many[:64]); p.poll()
"""
FAR_APART = f"""
{PAIR}
os.dup2(a.fileno(), 700); ready(b.fileno(), 700)
select.select([700, b], [], [])
"""
SEND = "c.send(bytes(9**6))"
CALL = 23 if platform.machine() == "x86_64" else 72
BARE_SELECT = f"{LIBC}.syscall({CALL}, 64, struct.pack('q', 1 << a.fileno()), 0, 0, 0, 0)"
"""Python's is pselect6."""
CONNECT = "ready(s.fileno()); s.connect(server.getsockname())"
POLLFD = "struct.pack('=ihh', r, 1, 0)"


@by_number
@rows(
    "wait, code",
    {
        "recv": (Wait.SOCKET, f"{ON_C}c.recv(1)"),
        "recvmsg": (Wait.SOCKET, f"{ON_C}c.recvmsg(1)"),
        "recvmmsg": (Wait.SOCKET, f"{ON_C}{LIBC}.recvmmsg(c.fileno(), bytes(64), 1, 0, None)"),
        "readv": (Wait.SOCKET, f"{ON_C}os.readv(c.fileno(), [bytearray(1)])"),
        "read": (Wait.SOCKET, f"{ON_C}os.read(c.fileno(), 1)"),
        "send to a full one": (Wait.SOCKET, f"{ON_C}\nwhile True: {SEND}"),
        "sendmsg": (Wait.SOCKET, f"{ON_C}\nwhile True: c.sendmsg([bytes(9**6)])"),
        "connect": (Wait.SOCKET, f"{FULL}s = socket.socket(); {CONNECT}"),
        "a timeout": (Wait.POLL, f"{CONNECTED}c.settimeout(60); ready(c.fileno()); c.recv(1)"),
        "accept": (Wait.ACCEPT, f"{ON_SERVER}server.accept()"),
        "bare accept": (Wait.ACCEPT, f"{ON_SERVER}{LIBC}.accept(server.fileno(), None, None)"),
        "read of a pipe": (Wait.PIPE, f"{PIPES}ready(r); os.read(r, 1)"),
        "write to a full one": (
            Wait.PIPE,
            f"{PIPES}ready(w)\nwhile True: os.write(w, bytes(4096))",
        ),
        "a UNIX socket": (Wait.PIPE, f"{PAIR}ready(a.fileno()); a.recv(1)"),
        "read of its input": (Wait.PIPE, "ready(0); sys.stdin.read()"),
        "poll of two": (
            Wait.POLL,
            f"{PIPES}{POLL}p.register(r); p.register(q); ready(r, q); p.poll()",
        ),
        "ppoll": (Wait.POLL, f"{PIPES}ready(r); {LIBC}.ppoll({POLLFD}, 1, None, None)"),
        "poll of none": (Wait.POLL, f"{POLL}ready(); p.poll(60_000)"),
        "poll of many": (Wait.POLL, MANY),
        "select": (Wait.POLL, f"{PAIR}ready(a.fileno()); select.select([a], [], [])"),
        "select by its own call": (Wait.POLL, f"{PAIR}ready(a.fileno()); {BARE_SELECT}"),
        "select of two, far apart": (Wait.POLL, FAR_APART),
        "select of none": (Wait.POLL, "ready(); select.select([], [], [], 60)"),
        "epoll": (Wait.POLL, f"{PIPES}e = select.epoll(); e.register(r); ready('none'); e.poll()"),
    },
)
def test_wait_and_descriptors_of_a_real_process(wait: Wait, code: str) -> None:
    with program(code) as process:
        reader = ProcessReader(PROC, process.pid)
        until(lambda: reader.wait() is wait, wait.value)
        reader.close()
        result = waits_on(process.pid, until(lambda: asleep(process), "a sleep"))
        assert result == (None if process.words == ["none"] else tuple(map(int, process.words)))


@rows(
    "call",
    {
        "a file that cannot be read": None,
        "an empty one": b"",
        "a thread that runs": b"running\n",
        "one that is not in a call": b"-1 0x7ffc 0x7f00\n",
        "an array that is not there": b"7 0x0 0x3 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n",
        "the same on arm64": b"73 0x10 0x3 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n",
        "a set that is not there": b"23 0x40 0x8 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n",
        "an absurd set": b"23 0xffffffff 0x8 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n",
        "a set, on arm64": b"72 0x40 0x8 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n",
        "absurd": b"7 0xffffffffffffffff 0xffffffff 0x0 0x0 0x0 0x0 0x0 0x0\n",
    },
)
def test_a_call_without_descriptors_is_unknown(call: bytes | None) -> None:
    assert waits_on(os.getpid(), call) is None


def test_a_process_that_ended_waits_on_unknown_ones() -> None:
    assert waits_on(ended(), b"7 0x7ffc 0x1 0x1\n") is None


@by_number
@rows(
    "code, awaits",
    {
        "one": ("pid = os.fork() or locked(); ready(pid); os.waitpid(pid, 0)", True),
        "one, by waitid": (
            "pid = os.fork() or locked(); ready(pid); os.waitid(os.P_PID, pid, os.WEXITED)",
            True,
        ),
        "any": ("pid = os.fork() or locked(); ready(pid); os.wait()", False),
        "any, by waitid": (
            "pid = os.fork() or locked(); ready(pid); os.waitid(os.P_ALL, 0, os.WEXITED)",
            False,
        ),
    },
)
def test_which_child_a_process_waits_for(code: str, awaits: bool) -> None:  # noqa: FBT001
    with program(code) as process:
        call = until(lambda: asleep(process), "a sleep")
        assert awaited_child(call) == (int(process.words[0]) if awaits else 0)


def test_a_call_that_is_no_wait_for_a_child_is_unknown() -> None:
    assert not any(map(awaited_child, (None, b"", b"running", b"-1 0x7ffc 0x7f00", b"7 0x1 0x1")))
