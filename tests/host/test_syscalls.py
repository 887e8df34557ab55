"""Which descriptors real threads wait on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.waits import waits_on
from support.programs import Program, program
from support.waiting import until

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="system calls are told by number"
)
SERVER = "server = socket.create_server(('127.0.0.1', 0)); port = server.getsockname()[1]\n"
CONNECTED = SERVER + "c = connect(port); a, _ = server.accept()\n"
PAIR = "a, b = socket.socketpair()\n"
POLL = "p = select.poll()\n"


def asleep_in(one: Program) -> bytes:
    """The call that it has come to and sleeps in; empty before that."""
    state = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0]
    call = Path(f"/proc/{one.pid}/syscall").read_bytes()
    return call if state == "S" and call != b"running\n" else b""


def waiting(one: Program) -> tuple[int, ...] | None:
    return waits_on(one.pid, until(lambda: asleep_in(one), "a sleep"))


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(CONNECTED + "ready(c.fileno()); c.recv(1)", id="recv"),
        pytest.param(CONNECTED + "ready(c.fileno()); c.recvmsg(1)", id="recvmsg"),
        pytest.param(CONNECTED + "ready(c.fileno()); os.read(c.fileno(), 1)", id="read"),
        pytest.param(
            CONNECTED + "ready(c.fileno())\nwhile True: c.send(bytes(9**6))",
            id="send to a full one",
        ),
        pytest.param(
            CONNECTED + "c.settimeout(60); ready(c.fileno()); c.recv(1)", id="recv with a timeout"
        ),
        pytest.param(SERVER + "ready(server.fileno()); server.accept()", id="accept"),
        pytest.param("r, w = os.pipe(); ready(r); os.read(r, 1)", id="read of a pipe"),
        pytest.param(
            "r, w = os.pipe(); q, v = os.pipe()\n"
            + POLL
            + "p.register(r); p.register(q); ready(r, q); p.poll()",
            id="poll of two",
        ),
        pytest.param(POLL + "ready(); p.poll(60_000)", id="poll of none"),
        pytest.param("ready(0); sys.stdin.read()", id="read of its input"),
        pytest.param(PAIR + "ready(a.fileno()); select.select([a], [], [])", id="select"),
        pytest.param(
            PAIR
            + "os.dup2(a.fileno(), 700); ready(b.fileno(), 700); select.select([700, b], [], [])",
            id="select of two, far apart",
        ),
        pytest.param("ready(); select.select([], [], [], 60)", id="select of none"),
    ],
)
def test_the_call_that_a_thread_sleeps_in_tells(code: str) -> None:
    with program(code) as one:
        assert waiting(one) == tuple(map(int, one.words))


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("ready(); locked()", id="a lock"),
        pytest.param("ready(); time.sleep(60)", id="a timer"),
        pytest.param(
            "r, w = os.pipe(); e = select.epoll(); e.register(r); ready(); e.poll()", id="an epoll"
        ),
    ],
)
def test_other_calls_do_not_tell(code: str) -> None:
    with program(code) as one:
        assert waiting(one) is None


def test_of_many_that_are_polled_the_first_are_told() -> None:
    code = "pipes = [os.pipe()[0] for _ in range(200)]\n" + POLL
    with program(code + "for r in pipes: p.register(r)\nready(*pipes); p.poll()") as one:
        assert waiting(one) == tuple(map(int, one.words[:64]))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(None, id="a file that cannot be read"),
        pytest.param(b"", id="an empty one"),
        pytest.param(b"running\n", id="a thread that runs"),
        pytest.param(b"-1 0x7ffc 0x7f00\n", id="one that is not in a call"),
        pytest.param(b"7 0x0 0x3 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n", id="an array that is not there"),
        pytest.param(b"73 0x10 0x3 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n", id="the same on arm64"),
        pytest.param(b"23 0x40 0x8 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n", id="a set that is not there"),
        pytest.param(b"23 0xffffffff 0x8 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n", id="an absurd set"),
        pytest.param(b"72 0x40 0x8 0x0 0x0 0x0 0x0 0x7ffc 0x7f00\n", id="a set, on arm64"),
        pytest.param(b"7 0xffffffffffffffff 0xffffffff 0x0 0x0 0x0 0x0 0x0 0x0\n", id="absurd"),
    ],
)
def test_what_does_not_tell_is_unknown(call: bytes | None) -> None:
    assert waits_on(os.getpid(), call) is None


def test_a_process_that_ended_is_unknown() -> None:
    with program(POLL + "r, w = os.pipe(); p.register(r); ready(); p.poll()") as one:
        call = until(lambda: asleep_in(one), "a sleep")
    assert waits_on(one.pid, call) is None
