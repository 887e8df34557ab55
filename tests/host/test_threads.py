"""The threads of real processes: which move, and what they wait for."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.host.process import TICK_NS
from gpu_bottleneck_exporter.host.threads import (
    MAX_WATCHED_THREADS,
    SCAN_INTERVAL_NS,
    Thread,
    Threads,
    ThreadUsage,
)
from gpu_bottleneck_exporter.host.waits import Wait
from support.programs import Program, ended, program
from support.rows import rows
from support.trees import lay
from support.waiting import until

PROC = Path("/proc")
CONNECTED = (
    "server = socket.create_server(('127.0.0.1', 0)); c = connect(server.getsockname()[1])\n"
)
CROWD = 3 * MAX_WATCHED_THREADS
FILES_OF_A_THREAD = 4


class Watched:
    """Threads at looks that are a whole scan apart, whatever the clock says."""

    def __init__(self, one: Program) -> None:
        self.threads = Threads(PROC, one.pid)
        self._now_ns = 0

    def scan(self) -> dict[str, Thread]:
        """Threads by name, the last of those that share one."""
        self._now_ns += SCAN_INTERVAL_NS
        return {thread.name: thread for thread in self.threads.sample(self._now_ns)}

    def look(self) -> dict[str, Thread]:
        """The same between two scans."""
        return {thread.name: thread for thread in self.threads.sample(self._now_ns + 1)}

    def await_(self, name: str, wait: Wait) -> None:
        def waits() -> bool:
            result = self.scan().get(name)
            return result is not None and result.wait is wait

        until(waits, wait.value)


@contextmanager
def watching(code: str) -> Iterator[tuple[Program, Watched]]:
    """A process whose first thread sleeps once it has run `code`."""
    with program(f"{code}\nready(c.fileno() if 'c' in globals() else '')\nlocked()") as process:
        watched = Watched(process)
        yield process, watched
        watched.threads.close()


@rows(
    "does, wait, on_the_connection",
    {
        "burns": ("burn", Wait.RUN, False),
        "a lock": ("locked", Wait.LOCK, False),
        "a pipe": ("lambda: os.read(os.pipe()[0], 1)", Wait.PIPE, False),
        "a child": ("lambda: subprocess.run(['sleep', '60'])", Wait.CHILD, False),
        "a read": ("lambda: c.recv(1)", Wait.SOCKET, True),
        "any of an epoll": ("(e := select.epoll(), e.register(c, 1))[0].poll", Wait.POLL, False),
    },
)
def test_activity_of_a_thread(does: str, wait: Wait, on_the_connection: bool) -> None:  # noqa: FBT001
    with watching(f"{CONNECTED}named('one', {does})") as (item, watched):
        watched.await_("one", wait)
        result = watched.scan()
        assert result.keys() == {"one"}, "the first thread is not told"
        assert (result["one"].descriptors == (int(item.words[0]),)) is on_the_connection


def test_a_thread_may_call_itself_anything() -> None:
    names = {repr(name): name for name in ("a) R 1 (b", "", "((((", "pt_autograd_0")}
    names |= {r"b'\xff\n\x01'": "\ufffd\n\x01"}
    code = "\n".join(f"named({called}, lambda: time.sleep(60))" for called in names)
    with watching(code) as (_, watched):
        for name in names.values():
            watched.await_(name, Wait.TIMER)


def test_only_those_that_move_are_asked_again() -> None:
    with watching("named('rests', locked); named('burns', burn)") as (_, watched):
        watched.await_("burns", Wait.RUN)
        until(lambda: watched.scan() and len(watched.threads.moving) == 1, "one that rests")
        watched.threads.drain_used()
        moved = list[ThreadUsage]()

        def burns() -> bool:
            watched.scan()
            moved.extend(watched.threads.drain_used())
            return any(used.cpu_ns for used in moved)

        until(burns, "CPU time")
        assert {used.name for used in moved} == {"burns"}
        assert watched.look()["rests"].wait is Wait.LOCK


def test_the_kernels_part_of_the_cpu_time_is_each_threads_own() -> None:
    code = """
zero = open("/dev/zero", "rb", 0)
def copies():
    while True:
        zero.readinto(bytearray(2**22))
named("copies", copies); named("burns", burn)
"""
    with watching(code) as (_, watched):
        cpu_ns, system_ns = Counter[str](), Counter[str]()

        def both_used(much_ns: int) -> bool:
            watched.scan()
            for used in watched.threads.drain_used():
                cpu_ns[used.name] += used.cpu_ns
                system_ns[used.name] += used.system_ns
            return min(cpu_ns["copies"], cpu_ns["burns"]) > much_ns

        until(lambda: both_used(300_000_000), "CPU time of both")
    assert system_ns["copies"] > cpu_ns["copies"] / 3
    assert system_ns["burns"] < cpu_ns["burns"] / 3


def test_delays_by_block_io_are_counted_where_the_kernel_does(tmp_path: Path) -> None:
    threads, result = Threads(tmp_path, 7), list[ThreadUsage]()
    for at in range(4):
        fields = [*"S1777", *["0"] * 34, f"{10 + 30 * at}"]
        task = {"stat": f"8 (reads) {' '.join(fields)} 0 0\n", "wchan": "futex_wait"}
        task["schedstat"] = f"{at} 0 {at}\n"
        lay(tmp_path, {f"7/task/8/{name}": text for name, text in task.items()})
        (tmp_path / "7/task/7").mkdir(exist_ok=True)
        threads.sample(at * SCAN_INTERVAL_NS)
        result += threads.drain_used()
    threads.close()
    assert [used.disk_ns // TICK_NS for used in result] == [0, 0, 30, 30], "as of the look before"


def test_a_thread_without_samples_is_missed(tmp_path: Path) -> None:
    threads = Threads(tmp_path, 7)

    def missed(at_ns: int, *ran: int) -> dict[str, bool]:
        for tid in ran:
            task = {"stat": f"{tid} (thread{tid}) {' '.join([*'S1777', *'0' * 37])}\n"}
            task |= {"wchan": "futex_wait", "schedstat": f"{at_ns} 0 1\n"}
            lay(tmp_path, {f"7/task/{tid}/{name}": text for name, text in task.items()})
        threads.sample(at_ns)
        return {used.name: used.missed for used in threads.drain_used()}

    (tmp_path / "7/task/7").mkdir(parents=True)
    second = SCAN_INTERVAL_NS
    missed(second, 8, 9)
    assert missed(2 * second, 8) == {"thread8": False}
    assert missed(3 * second, 8, 9) == {"thread8": False, "thread9": True}
    assert missed(4 * second, 8, 9) == {"thread8": False, "thread9": False}
    missed(5 * second, 8)
    assert missed(7 * second + 1, 8, 9) == {"thread8": False, "thread9": False}, "after a pause"
    threads.close()


def test_a_thread_that_falls_asleep_wakes_and_ends_is_seen_to_do_so() -> None:
    code = """
done, over = [], []; r, w = os.pipe()
def turn():
    while not done: pass
    os.read(r, 1)
    while not over: pass
named('stays', locked); named('one', turn); ready()
told(); done.append(1)
told(); os.write(w, b'x')
told(); over.append(1)
"""
    with watching(code) as (item, watched):
        watched.await_("one", Wait.RUN)
        item.tell()
        watched.await_("one", Wait.PIPE)
        assert watched.look()["one"].wait is Wait.PIPE
        item.tell()
        watched.await_("one", Wait.RUN)
        item.tell()
        until(lambda: watched.scan().keys() == {"stays"}, "its end")


def test_a_process_that_ended_has_no_threads() -> None:
    with watching("named('one', locked)") as (item, watched):
        assert "one" in watched.scan()
        item.process.kill()
        until(lambda: watched.threads.sample(0) == [] or watched.scan() == {}, "nobody of a zombie")
        item.process.wait()
        assert watched.scan() == {}
    assert Threads(PROC, ended()).sample(0) == []


def test_unread_usage_expires() -> None:
    code = "for _ in range(20): named('n', lambda: [time.sleep(0.0005) for _ in iter(int, 1)])"
    with watching(code) as (_, watched):
        lengths = [0]

        def scan() -> int:
            watched.scan()
            lengths.append(len(watched.threads._usage))
            return lengths[-1]

        until(lambda: scan() > 20, "entries of two scans, on a busy machine, too")
        for _ in range(300):
            scan()
        assert len(watched.threads.moving) <= 20
        assert max(lengths) <= 10 * MAX_WATCHED_THREADS


def test_watched_threads_of_a_crowd_are_bounded_and_it_is_reported() -> None:
    code = f"threading.stack_size(65536)\nfor at in range({CROWD}): named(str(at), locked)\n"
    with watching(f"{code}named('burns', burn)") as (_, watched):
        values: set[str] = set()
        opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
        for _ in range(40):
            names = watched.scan().keys()
            assert len(names) <= MAX_WATCHED_THREADS
            values |= names
            taken = len(os.listdir("/proc/self/fd")) - opened  # noqa: PTH208 - a count
            assert taken <= FILES_OF_A_THREAD * MAX_WATCHED_THREADS
        assert not watched.threads.complete
        assert len(values) > CROWD / 2, "others come in turn"

        def stays() -> bool:
            time.sleep(0.1)  # as long as one that burns may have to wait for a CPU
            return "burns" in watched.scan()

        # Among the others, in turn, it would be there less often.
        until(lambda: all(stays() for _ in range(10)), "that one that moves stays")
