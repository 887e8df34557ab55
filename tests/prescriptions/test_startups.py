"""What start-ups cost: of a job that starts again and again, seen as the exporter sees it."""

from __future__ import annotations

import pytest

from gpu_bottleneck_exporter.accounting.stall import (
    HOST_CODE,
    NETWORK,
    STORAGE,
    UNALLOCATED,
    UNKNOWN,
)
from gpu_bottleneck_exporter.prescription.keeper import Keeper, Setting
from gpu_bottleneck_exporter.prescription.model import STARTUP, Prescription, Refusal
from gpu_bottleneck_exporter.prescription.observed import Observed
from gpu_bottleneck_exporter.prescription.pauses import Pauses

PART = 4
"""Seconds; a tick takes one."""
NOBODY = frozenset[int]()


class Gpu:
    """Tells a keeper of runs, tick by tick, and of who has the GPU as late as the driver tells."""

    def __init__(self, found_after: int = 6) -> None:
        self.pauses = Pauses()
        self.keeper = Keeper(self.pauses)
        self.found_after = found_after
        self.at = 0
        self._ticks: list[tuple[float, str]] = []
        self._mains: list[frozenset[int]] = []

    def tick(self, busy: float, stall: str, mains: frozenset[int], job: str = "train") -> None:
        self.at += 1
        active = round(busy * 1e9)
        self.pauses.add(active, {stall: 10**9 - active})
        self._ticks.append((busy, stall))
        self._mains.append(mains)
        if self.at % PART == 0:
            self._tell(job)

    def _tell(self, job: str) -> None:
        parts, self._ticks = self._ticks, []
        before, now = [*[NOBODY] * PART, *self._mains][-PART - 1], self._mains[-1]
        stalls: dict[str, float] = {}
        for share, stall in parts:
            stalls[stall] = stalls.get(stall, 0.0) + (1 - share) / PART
        seen = Observed(PART, sum(share for share, _ in parts) / PART, stalls, len(now))
        setting = Setting(job if now else "", now, 0, None)
        take_in = self.keeper.add if now == before else self.keeper.cross
        take_in(float(self.at), seen, setting)

    def run(  # noqa: PLR0913, PLR0917 - a run has as many sides
        self,
        pid: int,
        startup: int,
        work: int,
        busy: float = 0.98,
        cause: str = STORAGE,
        job: str = "train",
    ) -> None:
        """A run; until its process is found, idle time is nobody's."""
        for second in range(startup + work):
            found = second >= self.found_after
            share = busy if second >= startup else 0.0
            stall = NETWORK if share else cause
            self.tick(
                share, stall if found else UNKNOWN, frozenset({pid}) if found else NOBODY, job
            )

    def free(self, seconds: int) -> None:
        """Nobody has it."""
        for _ in range(seconds):
            self.tick(0.0, UNALLOCATED, NOBODY)

    def told(self) -> Prescription | Refusal:
        return self.keeper._startups.advice()


def prescribed(gpu: Gpu) -> Prescription:
    found = gpu.told()
    assert isinstance(found, Prescription)
    return found


@pytest.fixture(params=[0, 2, 6, 9], ids=lambda late: f"found after {late} s", name="gpu")
def gpu_fixture(request: pytest.FixtureRequest) -> Gpu:
    gpu = Gpu(request.param)
    gpu.free(8)
    return gpu


@pytest.mark.parametrize("busy", [0.98, 0.5])
def test_runs_that_start_again_and_again_could_be_one(gpu: Gpu, busy: float) -> None:
    for pid in (1, 2, 3):
        gpu.run(pid, 8, 20, busy)
    found = prescribed(gpu)
    assert (found.knob, found.value, found.at_most) == (STARTUP, 0.0, True)
    assert found.current == pytest.approx(8 / 28, abs=0.03)
    assert found.busy == pytest.approx(busy * 20 / 28, abs=0.02)
    assert found.predicted == pytest.approx(busy, abs=0.03)
    assert found.low == found.busy
    told = gpu.keeper.outlook.advice
    assert isinstance(told, Prescription)
    assert told.knob == STARTUP


def test_its_cause_is_what_the_gpu_waited_for_once_somebody_was_known(gpu: Gpu) -> None:
    for pid in (1, 2, 3):
        gpu.run(pid, 12, 20, cause=HOST_CODE)
    assert prescribed(gpu).cause == HOST_CODE


def test_time_in_which_nobody_has_the_gpu_is_no_startup(gpu: Gpu) -> None:
    for pid in (1, 2, 3):
        gpu.run(pid, 8, 20)
        gpu.free(60)
    assert prescribed(gpu).current == pytest.approx(8 / 28, abs=0.03)


def test_a_single_start_has_no_price(gpu: Gpu) -> None:
    gpu.run(1, 12, 100)
    assert gpu.told() == Refusal("starting")


def test_a_gpu_that_has_not_worked_yet_has_that_as_the_reason(gpu: Gpu) -> None:
    gpu.run(1, 40, 0)
    assert gpu.keeper.outlook.advice == Refusal("starting")


def test_while_it_starts_once_more_the_advice_stays(gpu: Gpu) -> None:
    for pid in (1, 2):
        gpu.run(pid, 8, 20)
    gpu.run(3, 40, 0)
    advice = gpu.keeper.outlook.advice
    assert isinstance(advice, Prescription)
    assert advice.knob == STARTUP


def test_the_starts_of_another_job_are_its_own(gpu: Gpu) -> None:
    gpu.run(1, 8, 20)
    gpu.run(2, 8, 20, job="other")
    assert gpu.told() == Refusal("starting")


def test_short_starts_of_long_runs_are_not_worth_a_word(gpu: Gpu) -> None:
    for pid in (1, 2, 3):
        gpu.run(pid, 4, 200)
    assert gpu.keeper.outlook.advice is None


def test_after_an_hour_it_is_forgotten(gpu: Gpu) -> None:
    for pid in (1, 2):
        gpu.run(pid, 8, 20)
    prescribed(gpu)
    gpu.free(3700)
    gpu.run(3, 8, 20)
    assert gpu.told() == Refusal("starting")


def test_what_a_run_does_without_the_gpu_before_it_ends_is_no_startup(gpu: Gpu) -> None:
    for pid in (1, 2, 3):
        gpu.run(pid, 8, 20)
        for _ in range(40):
            gpu.tick(0.0, HOST_CODE, frozenset({pid}))
    assert prescribed(gpu).current == pytest.approx(8 / 68, abs=0.07)


def test_a_model_that_is_copied_to_the_gpu_does_not_end_its_start(gpu: Gpu) -> None:
    for pid in (1, 2, 3):
        gpu.run(pid, 5, 0)
        gpu.tick(0.2, UNKNOWN, frozenset({pid}))
        for _ in range(4):
            gpu.tick(0.0, STORAGE, frozenset({pid}))
        for _ in range(20):
            gpu.tick(0.98, NETWORK, frozenset({pid}))
    assert prescribed(gpu).current == pytest.approx(10 / 30, abs=0.05)
