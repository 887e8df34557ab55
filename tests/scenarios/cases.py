"""The scenarios of `cases.csv`; README.md explains its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from scenarios.cgroups import Limits
from scenarios.loops import CORES, MEBIBYTE
from tables.splice import read_csv

BESIDE = None
"""In place of GPUs: a process that runs next to the job."""
ALERT_SECONDS = 40.0
"""Alerts mostly fire within 20 s of the start of the processes."""


@dataclass(frozen=True, slots=True, order=True)
class Diagnosis:
    """An alert and its cause, which is the primary one while the alert fires."""

    alert: str
    cause: str


CPU_QUEUE, NEED_CPU = "cpu_queue", frozenset({"cpu_quota", "host_code", "worker_cpu"})
QUEUE = Diagnosis("GpuCpuOversubscribed", "cpu_oversubscribed")
TABLE = Path(__file__).with_name("cases.csv")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Process:
    """A loop, the GPUs it holds, and the limits of the control group that it is in, if it is."""

    loop: str
    gpus: tuple[int, ...] | None = (0,)
    limits: Limits | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What is accepted on GPU `gpu`; `second_half`: after the loop was told to change.

    Without `waiting_on`, the GPU is hardly ever idle. Without `alerts`, none may fire. Those in
    `before` may fire, but do not suffice.
    """

    waiting_on: frozenset[str]
    alerts: frozenset[Diagnosis] = frozenset()
    before: frozenset[Diagnosis] = frozenset()
    alert_seconds: float = ALERT_SECONDS
    """How long after the start of the processes one of `alerts` may take to fire."""
    gpu: int = 0
    second_half: bool = False
    title: str = ""

    def in_a_crowd(self) -> Expected:
        """The same where a stranger takes a core: who needs the CPU may wait for it, too."""
        if not self.waiting_on & NEED_CPU:
            return self
        waiting_on = self.waiting_on | {CPU_QUEUE}
        return replace(self, waiting_on=waiting_on, alerts=self.alerts | {QUEUE})


@dataclass(frozen=True, slots=True)
class Case:
    """One scenario."""

    name: str
    processes: tuple[Process, ...]
    expected: tuple[Expected, ...]
    data_bytes: int = 0
    """Size of the data set; 0: it reads none."""
    stage: str = ""
    """Cases with the same stage run together: they leave enough CPU or disk for each other."""
    quick: bool = False
    """For every change."""

    @property
    def gpus(self) -> int:
        """How many GPUs it takes."""
        return 1 + max(expected.gpu for expected in self.expected)

    @property
    def needs_disk(self) -> bool:
        """Whether its files must be on a disk, not in memory."""
        return self.data_bytes > 0 or any(p.loop == "checkpointing" for p in self.processes)


def stages(cases: Sequence[Case]) -> list[tuple[Case, ...]]:
    """Cases that run at the same time: those with the same stage; all others run alone."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.stage or case.name, []).append(case)
    return [tuple(together) for together in found.values()]


def side_by_side(cases: Sequence[Case]) -> Case:
    """One case that combines `cases`, each with its own GPUs."""
    if len(cases) == 1:
        return cases[0]
    processes: list[Process] = []
    expected: list[Expected] = []
    first = 0
    for case in cases:
        processes += [_moved(process, first) for process in case.processes]
        expected += [replace(one, gpu=one.gpu + first) for one in case.expected]
        first += case.gpus
    return Case(
        name="side by side",
        processes=tuple(dict.fromkeys(processes)),  # what two jobs have next to them runs once
        expected=tuple(expected),
        data_bytes=max(case.data_bytes for case in cases),
    )


def apart(cases: Sequence[Case], results: Sequence[T]) -> list[list[T]]:
    """`results` of `side_by_side(cases)`, by case."""
    left = iter(results)
    return [[next(left) for _ in case.expected] for case in cases]


def _moved(process: Process, first: int) -> Process:
    """`process` with its GPUs counted from `first` on."""
    gpus = process.gpus
    return process if gpus is BESIDE else replace(process, gpus=tuple(i + first for i in gpus))


def _case(name: str, loop: str, waits_for: str, alerts: str, besides: str) -> Case:
    told = dict(word.partition(" ")[::2] for word in besides.split(", "))
    beside = [word for word in told.get("beside", "").split() if word != "hogs"]
    beside += ["hog"] * (CORES + 1) * ("hogs" in told.get("beside", ""))
    expected = _expected(waits_for, alerts, told)
    gpus = tuple(dict.fromkeys(one.gpu for one in expected))
    job = [Process(loop, gpus, _limits(told))] if loop else []
    data = int(told.get("data", 0)) * MEBIBYTE
    processes = (*(Process(other, BESIDE) for other in beside), *job)
    return Case(name, processes, expected, data, told.get("stage", ""), "quick" in told)


def _limits(told: Mapping[str, str]) -> Limits | None:
    cores, *sizes = (float(told.get(what, 0)) for what in ("cores", "memory", "rate"))
    memory, rate = (round(size * MEBIBYTE) or None for size in sizes)
    limits = Limits(cores or None, memory, rate)
    return limits if limits != Limits() else None


def _expected(waits_for: str, alerts: str, told: Mapping[str, str]) -> tuple[Expected, ...]:
    found: list[Expected] = []
    before = _diagnoses(told.get("before", ""))
    for number, (of_one, fires) in enumerate(
        zip(waits_for.split("; "), alerts.split("; "), strict=True)
    ):
        title, _, labels = of_one.rpartition(": ")
        second = "changes" in told and number > 0
        one = Expected(
            waiting_on=frozenset(labels.split(" or ")) - {"busy"},
            alerts=_diagnoses(fires),
            before=found[0].alerts if second else before,
            alert_seconds=float(told.get("seconds", ALERT_SECONDS)),
            gpu=0 if second else number,
            second_half=second,
            title=title,
        )
        found.append(one)
    return tuple(found)


def _diagnoses(told: str) -> frozenset[Diagnosis]:
    return frozenset(Diagnosis(*one.split()) for one in told.split(" or ") if one)


CASES = tuple(_case(*cells) for *cells, _why in read_csv(TABLE))
