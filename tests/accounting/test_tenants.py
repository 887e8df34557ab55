"""The time of a shared GPU by tenant: exact sums whatever the driver's samples, true shares."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Part, Role
from gpu_bottleneck_exporter.accounting.stall import ASLEEP, HOST_CODE, STORAGE, UNKNOWN
from gpu_bottleneck_exporter.accounting.tenants import BusyMeter, TenantMeter
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED, TenantTime, Tick
from gpu_bottleneck_exporter.accounting.windows import ClockMap, Window, sums
from gpu_bottleneck_exporter.driver.readings import Identity, ProcessSample, ProcessUse, Reading

SECOND = 1_000_000_000
PERIOD = SECOND // 5
GPU = Identity(0, "GPU-a")
NO_PID = 0


def tick(now: int, windows: Sequence[Window], use: ProcessUse | None) -> Tick:
    readings: dict[type[Reading], tuple[int, Reading]] = {ProcessUse: (now, use)} if use else {}
    idle = sums(windows)[0] - sums(windows)[1]
    return Tick(GPU, now, frozenset(), readings, windows, {ASLEEP: idle} if idle else {})


def busy_by_name(parts: Sequence[TenantTime]) -> dict[str, int]:
    return {part.name: sum(part.busy_ns.values()) for part in parts}


@dataclass
class Board:
    """A GPU whose driver samples every `PERIOD`, on a clock of its own."""

    clock: ClockMap = field(default_factory=ClockMap)
    window: int = 50
    """Number of the next window."""
    means: bool = False
    """Whether samples are means since the last call, stamped when a process last ran."""
    ring: bool = True
    """Whether the busy time is that of a ring with the same clock."""
    clock_us: int = 7_000_000
    given: Counter[str] = field(default_factory=Counter)
    stalls: Counter[str] = field(default_factory=Counter)
    delayed: tuple[ProcessSample, ...] = ()

    def __post_init__(self) -> None:
        self.meter = TenantMeter(self.clock)

    def step(  # noqa: PLR0913 - all that a driver may do
        self,
        names: Mapping[int, str],
        ran: Sequence[Mapping[int, int]],
        *,
        lost: frozenset[int] = frozenset(),
        late: int = 0,
        answers: bool = True,
        bucket: Bucket | None = None,
    ) -> tuple[TenantTime, ...]:
        """Windows in which pids `ran`, in percent; samples of `lost` windows are dropped.

        `late`: number of windows whose samples come with the next step.
        """
        first, count = self.window, len(ran)
        self.window += count
        windows = [
            Window(
                (first + at + 1) * PERIOD, PERIOD, PERIOD * min(sum(by_pid.values()), 100) // 100
            )
            for at, by_pid in enumerate(ran)
        ]
        samples = [
            ProcessSample(self.clock_us + (first + at + 1) * PERIOD // 1000, pid, percent)
            for at, by_pid in enumerate(ran)
            for pid, percent in by_pid.items()
            if percent and at not in lost
        ]
        timely = [
            s
            for s in samples
            if s.timestamp_us <= self.clock_us + (first + count - late) * PERIOD // 1000
        ]
        use = ProcessUse(self._answer((*self.delayed, *timely), count)) if answers else None
        self.delayed = tuple(sample for sample in samples if sample not in timely)
        if self.ring:
            self.clock.note(self.window * PERIOD, self.clock_us + self.window * PERIOD // 1000)
        parts = self.meter.divide(tick(self.window * PERIOD, windows, use), names, bucket, 0.0)
        observed, active = sums(windows)
        assert sum(busy_by_name(parts).values()) == active
        assert all(
            ns >= 0 for part in parts for ns in (*part.busy_ns.values(), *part.stalls.values())
        )
        idle = sum(sum(part.stalls.values()) for part in parts)
        assert idle == (observed - active if names else 0)
        self.given.update(busy_by_name(parts))
        self.stalls.update({part.name: sum(part.stalls.values()) for part in parts})
        return parts

    def _answer(self, samples: tuple[ProcessSample, ...], count: int) -> tuple[ProcessSample, ...]:
        if not self.means:
            return samples
        sums, ends = Counter[int](), dict[int, int]()
        for sample in samples:
            sums[sample.pid] += sample.percent
            ends[sample.pid] = sample.timestamp_us
        return tuple(ProcessSample(ends[pid], pid, n // count) for pid, n in sums.items())


NAMES = {11: "a", 12: "b", 13: "b"}
pids = st.sampled_from([11, 12, 13, 14, 15, 16, 17, 18, 99])
work = st.dictionaries(pids, st.integers(0, 100), max_size=8)
tenants = st.dictionaries(pids, st.sampled_from("abcdefgh"), min_size=1, max_size=8)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            tenants,
            st.lists(work, min_size=1, max_size=8),
            st.frozensets(st.integers(0, 7)),
            st.integers(0, 3),
            st.booleans(),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_parts_add_up_whatever_the_samples(
    steps: list[tuple[dict[int, str], list[dict[int, int]], frozenset[int], int, bool]],
) -> None:
    board = Board()
    for names, ran, lost, late, answers in steps:
        before = +board.given
        board.step(names, ran, lost=lost, late=late, answers=answers)
        assert all(board.given[name] >= ns for name, ns in before.items())


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=40, max_size=80),
    st.integers(1, 6),
    st.integers(0, 2),
)
def test_shares_are_those_of_the_samples(
    ran: list[tuple[int, int]], per_tick: int, late: int
) -> None:
    board, true = Board(), Counter[str]()
    for at in range(0, len(ran), per_tick):
        some = [{11: a, 12: b} for a, b in ran[at : at + per_tick]]
        board.step(NAMES, some, late=min(late, len(some)))
        for by_pid in some:
            true.update(a=by_pid[11] * PERIOD // 100, b=by_pid[12] * PERIOD // 100)
    unsettled = (per_tick + 3) * PERIOD
    assert board.given["a"] == pytest.approx(true["a"], abs=unsettled)
    assert board.given["b"] == pytest.approx(true["b"], abs=unsettled)


def test_samples_of_another_clock_have_their_own_map() -> None:
    board = Board(ring=False)
    for turn in range(200):
        board.step(NAMES, [{11: 90} if turn % 2 else {12: 45}] * 7)
    assert board.given["a"] / board.given["b"] == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("means", [False, True])
def test_four_of_a_quarter_each_are_one_gpu(means: bool) -> None:  # noqa: FBT001
    board, names = Board(means=means), {20 + at: f"{at}" for at in range(4)}
    for turn in range(300):
        board.step(names, [{20 + turn % 4: 100}] * 5, late=1)
    for name in names.values():
        assert board.given[name] / board.given.total() == pytest.approx(0.25, abs=0.005)


@pytest.mark.parametrize("means", [False, True])
def test_turns_that_outlast_a_tick_are_settled_afterwards(means: bool) -> None:  # noqa: FBT001
    board = Board(means=means)
    for turn in range(200):
        board.step(NAMES, [{11: 90} if turn % 2 else {12: 45}] * 7, late=5)
    assert board.given["a"] / board.given["b"] == pytest.approx(2, abs=0.05)


def test_unknown_processes_and_missing_samples_are_unattributed() -> None:
    board = Board()
    for _ in range(50):
        board.step(NAMES, [{11: 30, 99: 60}] * 5)
    assert board.given[UNATTRIBUTED] / board.given.total() == pytest.approx(2 / 3, abs=0.01)
    board = Board()
    for _ in range(50):
        board.step(NAMES, [{11: 30}] * 5, answers=False)
    assert board.given.keys() - {"a", "b"} == {UNATTRIBUTED}
    assert not board.given["a"]


def test_a_ring_that_no_longer_answers_is_noticed() -> None:
    board = Board()
    for _ in range(20):
        board.step(NAMES, [{11: 50}] * 5)
    proven = board.given["a"]
    for _ in range(60):
        board.step(NAMES, [{11: 50}] * 5, answers=False)
    assert board.given["a"] - proven <= 2 * SECOND
    assert board.given[UNATTRIBUTED] >= 27 * SECOND


def test_samples_that_come_after_an_exit_belong_to_the_tenant() -> None:
    board = Board()
    for _ in range(10):
        board.step(NAMES, [{11: 100}] * 5, late=5)
    parts = board.step({12: "b"}, [{12: 100}] * 5)
    assert busy_by_name(parts).keys() >= {"a", "b"}
    assert UNATTRIBUTED not in busy_by_name(parts)


def test_idle_time_is_split_equally_and_by_the_waits_of_each_tenant() -> None:
    runs = Bucket(parts={Role.MAIN: Part({Activity.RUN: 10}, 10, 10)})
    reads = Bucket(parts={Role.MAIN: Part({Activity.DISK: 10}, 10, 10)})
    both = Bucket(tenants={"a": runs, "b": reads})
    parts = Board().step(NAMES | {14: "c"}, [{11: 40}], bucket=both)
    stalls = {part.name: dict(part.stalls) for part in parts if part.stalls}
    third = PERIOD * 60 // 100 // 3
    assert stalls == {"a": {HOST_CODE: third}, "b": {STORAGE: third}, "c": {UNKNOWN: third}}


def test_each_holder_has_an_entry_also_without_work() -> None:
    (a, b) = Board().step(NAMES, [{}])
    assert (a.busy_ns, b.busy_ns) == ({11: 0}, {12: 0, 13: 0})


def test_balances_are_bounded() -> None:
    meter, now = BusyMeter(ClockMap()), SECOND
    busy = defaultdict[int, int](int)
    for number in range(2000):
        now += SECOND
        use = ProcessUse(
            tuple(ProcessSample(now // 1000, 1000 + 50 * number + at, 99) for at in range(50))
        )
        for pid, ns in meter.divide(now, [Window(now, SECOND, SECOND)], use).items():
            busy[pid] += ns
        meter.forget(())
    assert len(meter._balance) <= 256
    assert sum(busy.values()) == 2000 * SECOND
    assert busy[NO_PID] < 10 * SECOND
