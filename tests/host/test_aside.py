"""A process may hold up the reader of its memory; for the watch, see faults/test_reads.py."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.feeders import usage
from gpu_bottleneck_exporter.host import aside as module
from gpu_bottleneck_exporter.host.aside import GuardedExecutor
from gpu_bottleneck_exporter.host.files import read
from support.programs import program
from support.waiting import PATIENCE_SECONDS, until

PROC = Path("/proc")


@pytest.fixture
def beside() -> GuardedExecutor:
    return GuardedExecutor(timeout_seconds=0.01)


def test_a_read_value_is_returned() -> None:
    beside = GuardedExecutor(PATIENCE_SECONDS)
    assert [beside.call(1, partial(int, n)) for n in range(100)] == [*range(100)]
    with pytest.raises(ZeroDivisionError):
        beside.call(1, lambda: 1 // 0)
    assert beside.call(1, threading.get_ident) != threading.get_ident()


def test_a_process_that_holds_a_reader_up_is_left_alone_until_it_lets_go() -> None:
    beside = GuardedExecutor(timeout_seconds=0.05)
    gate = threading.Event()
    before = threading.active_count()
    assert beside.call(1, gate.wait) is None
    assert [beside.call(1, lambda: "never asked") for _ in range(50)] == [None] * 50
    beside._timeout = PATIENCE_SECONDS
    assert beside.call(2, lambda: "another") == "another"
    assert threading.active_count() <= before + 2
    gate.set()
    until(lambda: beside.call(1, lambda: "asked again"), "that it is asked again")
    until(lambda: threading.active_count() <= before + 1, "the end of the one left behind")


def test_abandoned_readers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HUNG_THREADS", 3)
    beside = GuardedExecutor(timeout_seconds=0.01)
    gate = threading.Event()
    before = threading.active_count()
    assert [beside.call(pid, gate.wait) for pid in range(1, 100)] == [None] * 99
    assert threading.active_count() <= before + 3
    beside._timeout = PATIENCE_SECONDS
    gate.set()
    until(lambda: beside.call(1, lambda: "asked again"), "that it is asked again")


def test_a_tenant_that_hangs_costs_itself_four_threads(beside: GuardedExecutor) -> None:
    beside.share_by(lambda pid: pid // 100)
    gate = threading.Event()
    before = threading.active_count()
    assert [beside.call(pid, gate.wait) for pid in range(100, 200)] == [None] * 100
    assert threading.active_count() <= before + module.MAX_HUNG_THREADS_PER_TENANT
    beside._timeout = PATIENCE_SECONDS
    assert beside.call(200, lambda: "another tenant") == "another tenant"
    beside._timeout = 0.01
    gate.set()
    until(lambda: beside.call(100, lambda: "asked again"), "that it is asked again")


def test_many_tenants_that_hang_leave_room_for_others(beside: GuardedExecutor) -> None:
    """Each of a user's jobs, or pods, has little time and one thread once there are many."""
    beside.share_by(lambda pid: pid // 100)
    gate = threading.Event()
    calls = [pid for tenant in range(1, 17) for pid in range(100 * tenant, 100 * tenant + 50)]
    assert {beside.call(pid, gate.wait) for pid in calls} == {None}
    waited = sum(timeout for *_, timeout in beside._hung.values())
    assert waited < 0.5 * module.MAX_HUNG_THREADS * 0.01
    beside._timeout = PATIENCE_SECONDS
    assert beside.call(9_900, lambda: "another tenant") == "another tenant"
    gate.set()
    until(lambda: not beside._hung, "the end of those left behind")


def test_a_tenant_that_held_up_none_keeps_its_time() -> None:
    """A process whose stat is not read in time counts as ended."""
    beside = GuardedExecutor(4 * module.CALL_TIMEOUT_SECONDS)
    late = dict.fromkeys(range(100, 120), 0.9 * module._MAX_DEBT_SECONDS)
    for tenant, seconds in late.items():
        beside._charge(tenant, seconds)
    assert beside._timeout_for(1) >= module.CALL_TIMEOUT_SECONDS
    beside._charge(1, 0.001)
    assert 0 < beside._timeout_for(1) < module.CALL_TIMEOUT_SECONDS
    assert {beside._timeout_for(tenant) for tenant in late} == {0.0}


def test_debts_of_milliseconds_leave_others_their_time() -> None:
    """Answers of honest processes are late on a busy machine, too."""
    beside = GuardedExecutor(4 * module.CALL_TIMEOUT_SECONDS)
    for tenant in range(100, 150):
        beside._charge(tenant, 0.01)
    assert beside._timeout_for(100) == 4 * module.CALL_TIMEOUT_SECONDS


def test_many_tenants_with_late_answers_take_a_bounded_time(beside: GuardedExecutor) -> None:
    beside._timeout = PATIENCE_SECONDS
    beside.share_by(lambda pid: pid // 100)
    values: list[int] = []

    def answer_late(pid: int) -> None:
        time.sleep(0.1)
        values.append(pid)

    for pid in (100 * tenant + n for tenant in range(1, 17) for n in range(20)):
        beside.call(pid, partial(answer_late, pid))
    seconds = 0.1 * len(values)
    assert seconds <= 8 * module._MAX_DEBT_SECONDS
    assert beside.call(9_900, lambda: "another tenant") == "another tenant"


@pytest.mark.parametrize("late_seconds", [0.1, 0.019])
def test_a_tenant_with_late_answers_runs_out_of_its_time(
    beside: GuardedExecutor, late_seconds: float
) -> None:
    """Each of its many processes answers in time, which would hold up callers for ever."""
    beside._timeout = PATIENCE_SECONDS
    beside.share_by(lambda pid: pid // 100)
    values: list[int] = []

    def answer_late(pid: int) -> None:
        time.sleep(late_seconds)
        values.append(pid)

    for pid in [*range(100, 200), *range(100, 200)]:
        beside.call(pid, partial(answer_late, pid))
    seconds = (late_seconds - module._UNCHARGED_SECONDS) * len(values)
    assert len(values) < 150
    assert seconds <= module._MAX_DEBT_SECONDS + 0.2, "and what it regained meanwhile"
    assert beside.call(200, lambda: "another tenant") == "another tenant"
    beside._repaid_at = {value: at - 100 for value, at in beside._repaid_at.items()}  # time goes by
    assert beside.call(100, lambda: "asked again") == "asked again"


def test_a_caller_waits_for_no_other_caller(beside: GuardedExecutor) -> None:
    beside._timeout = PATIENCE_SECONDS
    gate, entered = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        gate.wait()

    slow = threading.Thread(target=beside.call, args=(1, wait), daemon=True)
    slow.start()
    entered.wait()
    assert beside.call(2, lambda: "at once") == "at once"
    gate.set()
    slow.join()


def test_a_helper_without_calls_ends(
    beside: GuardedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_IDLE_SECONDS", 0.01)
    beside._timeout = PATIENCE_SECONDS

    def helpers() -> int:
        return sum(thread.name == "aside" for thread in threading.enumerate())

    before = helpers()
    for _ in range(3):
        assert beside.call(1, lambda: "answer") == "answer"
        until(lambda: helpers() <= before and not beside._idle, "its end")


def test_computing_is_no_late_answer(beside: GuardedExecutor) -> None:
    """Parsing stacks may take this time: it has a budget of CPU time."""
    beside._timeout = PATIENCE_SECONDS

    def compute() -> None:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass

    for _ in range(15):
        beside.call(1, compute)
    assert beside.call(1, lambda: "asked again") == "asked again"
    assert beside.cpu_seconds >= 1.5


def test_the_cpu_time_of_a_call_that_was_abandoned_counts(beside: GuardedExecutor) -> None:
    ends = threading.Event()

    def burn() -> None:
        while not ends.is_set():
            pass

    assert beside.call(1, burn) is None
    before = beside.cpu_seconds
    until(lambda: beside.cpu_seconds > before + 0.05, "CPU time of the call")
    ends.set()
    until(lambda: not beside._hung, "its end")
    assert beside.cpu_seconds > before


def test_memory_that_cannot_be_added_up_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the process holds the lock of its memory for ever."""
    gate = threading.Event()
    monkeypatch.setattr(usage, "memory_reads", GuardedExecutor(timeout_seconds=0.05))
    with program("ready(); told()") as process:
        exact = usage.private_bytes(PROC, process.pid)
        hangs = "smaps_rollup"
        monkeypatch.setattr(
            usage, "read", lambda path: gate.wait() if hangs in path else read(path)
        )
        bound = usage.private_bytes(PROC, process.pid)
        gate.set()
        assert exact
        assert bound, "from what is resident"
