"""The scenarios of `cases.csv`; README.md explains its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scenarios.cgroups import Limits
from scenarios.diagnoses import Diagnosis
from scenarios.loops import MEBIBYTE
from tables.splice import read_csv

ALERT_SECONDS = 40.0
"""Most alerts fire within 20 s of the start of the processes."""


CPU_QUEUE, NEED_CPU = "cpu_queue", frozenset({"cpu_quota", "host_code", "worker_cpu"})
QUEUE = Diagnosis("GpuStarved", "cpu_oversubscribed")
TABLE = Path(__file__).with_name("cases.csv")


@dataclass(frozen=True, slots=True)
class Process:
    """A loop, and the GPUs it holds from `gpu` on; none if it runs next to the job."""

    loop: str
    gpu: int = 0
    gpus: int = 1
    limits: Limits | None = None
    """Limits of its control group, if it is in one."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The accepted result on GPU `gpu`; `second_half`: after the signal to change.

    Without `waiting_on`, the GPU is rarely idle. Without `alerts`, none may fire. Those in
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
        """The same alerts where a stranger takes a core, and one more for who needs the CPU."""
        more = {QUEUE} if self.waiting_on & NEED_CPU else set()
        return replace(self, alerts=self.alerts | more)


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
    """Whether it runs with every change."""

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
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.stage or case.name, []).append(case)
    return [tuple(together) for together in groups.values()]


def _case(name: str, loop: str, waits_for: str, alerts: str, besides: str) -> Case:
    fields = dict(word.partition(" ")[::2] for word in besides.split(", "))
    expected = _expected(waits_for, alerts, fields)
    processes = [Process(other, gpus=0) for other in fields.get("beside", "").split()]
    if loop:
        processes.append(Process(loop, 0, len({item.gpu for item in expected}), _limits(fields)))
    data = int(fields.get("data", 0)) * MEBIBYTE
    return Case(name, tuple(processes), expected, data, fields.get("stage", ""), "quick" in fields)


def _limits(told: Mapping[str, str]) -> Limits | None:
    cores, *sizes = (float(told.get(what, 0)) for what in ("cores", "memory", "rate"))
    memory, rate = (round(size * MEBIBYTE) or None for size in sizes)
    limits = Limits(cores or None, memory, rate)
    return limits if limits != Limits() else None


def _expected(waits_for: str, alerts: str, told: Mapping[str, str]) -> tuple[Expected, ...]:
    values: list[Expected] = []
    before = _diagnoses(told.get("before", ""))
    for number, (of_one, fires) in enumerate(
        zip(waits_for.split("; "), alerts.split("; "), strict=True)
    ):
        title, _, labels = of_one.rpartition(": ")
        second = "changes" in told and number > 0
        expected = Expected(
            waiting_on=frozenset(labels.split(" or ")) - {"busy"},
            alerts=_diagnoses(fires),
            before=values[0].alerts if second else before,
            alert_seconds=float(told.get("seconds", ALERT_SECONDS)),
            gpu=0 if second else number,
            second_half=second,
            title=title,
        )
        values.append(expected)
    return tuple(values)


def _diagnoses(told: str) -> frozenset[Diagnosis]:
    return frozenset(Diagnosis(*word.split()) for word in told.split(" or ") if word)


CASES = tuple(_case(*cells) for *cells, _why in read_csv(TABLE))
