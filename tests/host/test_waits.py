"""What threads wait for, by recorded channels and by real processes that block."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.waits import Wait, asleep_in, wait_of
from support.programs import program
from support.waiting import until

PROC = Path("/proc")
SERVER = "server = socket.create_server(('127.0.0.1', 0)); port = server.getsockname()[1]\n"
FIFO = "r, w = os.pipe()\n"


@pytest.mark.parametrize(
    ("letter", "channel", "found"),
    [
        ("R", "0", Wait.RUN),
        ("R", None, Wait.RUN),
        ("R", "futex_wait_queue", Wait.RUN),
        ("D", "io_schedule", Wait.DISK),
        ("D", "0", Wait.DISK),
        ("D", None, Wait.DISK),
        ("T", "do_signal_stop", Wait.STOPPED),
        ("t", "ptrace_stop", Wait.STOPPED),
        ("Z", "0", Wait.GONE),
        ("X", None, Wait.GONE),
        ("S", None, Wait.UNKNOWN),
        ("S", "", Wait.UNKNOWN),
        ("S", "0", Wait.UNKNOWN),
        ("S", "request_wait_answer", Wait.DISK),
        ("S", "fuse_dev_do_write", Wait.DISK),
        ("S", "rpc_wait_bit_killable", Wait.DISK),
        ("S", "nfs_wait_bit_killable", Wait.DISK),
        ("S", "nfs4_delay_killable", Wait.DISK),
        ("S", "cl_sync_io_wait", Wait.DISK),
        ("S", "ptlrpc_set_wait", Wait.DISK),
        ("S", "ceph_osdc_wait_request", Wait.DISK),
        ("S", "netfs_wait_for_read", Wait.DISK),
        ("S", "p9_client_rpc", Wait.DISK),
        ("S", "io_cqring_wait", Wait.DISK),
        ("S", "read_events", Wait.DISK),
        ("S", "sk_wait_data", Wait.SOCKET),
        ("S", "sk_stream_wait_memory", Wait.SOCKET),
        ("S", "inet_wait_for_connect", Wait.SOCKET),
        ("S", "wait_woken", Wait.SOCKET),
        ("S", "__skb_wait_for_more_packets", Wait.SOCKET),
        ("S", "inet_csk_accept", Wait.ACCEPT),
        ("S", "futex_wait_queue_me", Wait.LOCK),
        ("S", "__futex_wait", Wait.LOCK),
        ("S", "do_semtimedop", Wait.LOCK),
        ("S", "pipe_read", Wait.PIPE),
        ("S", "anon_pipe_write", Wait.PIPE),
        ("S", "anon_pipe_read", Wait.PIPE),
        ("S", "unix_stream_read_generic", Wait.PIPE),
        ("S", "do_poll.constprop.0", Wait.POLL),
        ("S", "do_sys_poll", Wait.POLL),
        ("S", "do_select", Wait.POLL),
        ("S", "ep_poll", Wait.POLL),
        ("S", "do_epoll_wait", Wait.POLL),
        ("S", "hrtimer_nanosleep", Wait.TIMER),
        ("S", "do_wait", Wait.CHILD),
        ("S", "kernel_wait4", Wait.CHILD),
        ("S", "some_new_place", Wait.OTHER),
    ],
)
def test_a_state_letter_and_a_channel_make_a_wait(
    letter: str, channel: str | None, found: Wait
) -> None:
    assert wait_of(letter, None if channel is None else channel.encode()) is found


@pytest.mark.parametrize(
    ("channel", "found"),
    [
        (b"futex_wait_queue", Wait.LOCK),
        (b"inet_csk_accept", Wait.ACCEPT),
        (b"ep_poll", Wait.POLL),
        (b"0", None),
        (b"io_schedule", None),
        (b"request_wait_answer", None),
        (b"do_signal_stop", None),
    ],
)
def test_a_channel_tells_alone_where_nothing_is_in_it_but_sleeps(
    channel: bytes, found: Wait | None
) -> None:
    assert asleep_in(channel) is found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        pytest.param(
            SERVER + "c = connect(port); a, _ = server.accept(); ready(); c.recv(1)",
            Wait.SOCKET,
            id="receives",
        ),
        pytest.param(
            SERVER
            + "c = connect(port); a, _ = server.accept(); ready()\nwhile True: c.send(bytes(9**6))",
            Wait.SOCKET,
            id="sends to one who does not receive",
        ),
        pytest.param(
            SERVER + "c = connect(port, timeout=60); a, _ = server.accept(); ready(); c.recv(1)",
            Wait.POLL,
            id="receives with a timeout",
        ),
        pytest.param(
            FIFO + "p = select.poll(); p.register(r); ready(); p.poll()", Wait.POLL, id="polls"
        ),
        pytest.param(FIFO + "ready(); select.select([r], [], [])", Wait.POLL, id="selects"),
        pytest.param(
            FIFO + "e = select.epoll(); e.register(r); ready(); e.poll()", Wait.POLL, id="epolls"
        ),
        pytest.param(SERVER + "ready(); server.accept()", Wait.ACCEPT, id="waits for a client"),
        pytest.param("ready(); locked()", Wait.LOCK, id="waits for a lock"),
        pytest.param("ready(); time.sleep(60)", Wait.TIMER, id="sleeps"),
        pytest.param(
            "c = subprocess.Popen(['sleep', '60']); ready(); os.waitpid(c.pid, 0)",
            Wait.CHILD,
            id="waits for a child",
        ),
        pytest.param(FIFO + "ready(); os.read(r, 1)", Wait.PIPE, id="reads a pipe"),
        pytest.param(
            FIFO + "ready()\nwhile True: os.write(w, bytes(4096))", Wait.PIPE, id="fills a pipe"
        ),
        pytest.param(
            "a, b = socket.socketpair(); ready(); a.recv(1)", Wait.PIPE, id="a UNIX socket"
        ),
        pytest.param("ready(); os.kill(os.getpid(), signal.SIGSTOP)", Wait.STOPPED, id="stopped"),
        pytest.param("ready(); burn()", Wait.RUN, id="burns"),
    ],
)
def test_what_a_real_process_waits_for(code: str, found: Wait) -> None:
    with program(code) as one:
        reader = ProcessReader(PROC, one.pid)
        until(lambda: reader.wait() is found, found.value)
        reader.close()
