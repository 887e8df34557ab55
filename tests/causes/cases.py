"""The situations of `situations.yml`: what runs on which GPU, and what Prometheus must report.

A row is one GPU, `gpus` of the same kind, or a list of them. `told` is the alert that must fire for
it, its cause and its severity; `besides` may; `primary` is the primary cause at the end if it is
not that of the alert.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from causes.board import HAPPENS
from gpu_bottleneck_exporter.demo.board.create import H100, Model
from gpu_bottleneck_exporter.demo.board.work import Work
from scenarios.diagnoses import Diagnosis
from support.models import A100
from support.rows import beside

JUDGED_SECONDS = 60.0
"""Time by which all alerts fire: the slowest wait for an hour, which is 30 s here."""
ANY = "any"
DAY = "40m"
"""Stands for a day, before division: a real one does not fit into a minute."""
NOT_QUITE = ", not quite"
"""The suffix of the healthy twin's name."""
_MODELS = {"H100": H100, "A100": A100}
_WORK = {one.name for one in fields(Work)}


@dataclass(frozen=True, slots=True)
class Expected:
    """Alerts that must fire for a GPU or a node at the end, and others that may."""

    alert: Diagnosis | None = None
    primary: str | None = None
    """The primary cause at the end, if not that of the alert; "": none."""
    besides: frozenset[Diagnosis] = frozenset()
    seconds: float = JUDGED_SECONDS
    """When it is checked, if not at the end."""

    @property
    def cause(self) -> str:
        """The primary cause at the end; "": none, `ANY`: it does not matter."""
        if self.primary is not None:
            return self.primary
        return self.alert.cause if self.alert else ""


NOTHING = Expected()
BLIND_FOR_JOBS = Diagnosis("GpuCausesBlind", "job_causes")
"""Diagnosis of a GPU with several tenants."""
_FLEET_WIDE = Diagnosis("GpuFleetBottleneck", "thermal_throttle")
CLUSTERS: Mapping[str, Expected] = {"hall": Expected(_FLEET_WIDE, primary="")}
"""Expected alerts about a cluster as a whole: the cooling of this one fails."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase: from second `since` on, the GPU does `work` for a share `busy` of the time."""

    work: Work = field(default_factory=Work)
    busy: float = 1.0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, and what must be reported about it."""

    phases: tuple[Phase, ...]
    expected: Expected
    happens: Mapping[str, Any]
    """See board.py."""
    held: float = 0.6
    """Share of its memory that its processes use."""
    held_growth: float = 0.0
    """Growth of that share per second."""
    model: Model = H100
    assigned: bool = False
    """The kubelet has given it to a pod."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds the GPUs of its case and runs work on them.

    `role`: a training loop, a server with a client, the client, a notebook's kernel.
    """

    role: str = "trains"
    tenant: int = 0
    """Index of its Slurm job among those of the case."""
    starts: float = 0.0
    life: float = math.inf
    """Age in seconds at which it is killed and restarted, each time."""


@dataclass(frozen=True, slots=True)
class Case:
    """One situation."""

    name: str
    gpus: tuple[Gpu, ...]
    processes: tuple[Process, ...]
    alone: bool
    """Has its own node, about which `expected` must be reported."""
    expected: Expected
    exporter_ends: float | None = None
    """When the exporter of its own node is killed, if it is alone."""
    exporter_returns: bool = False
    """Whether another one starts at once."""
    cluster: str = ""
    """The cluster of its own node, if it is alone."""

    @property
    def of_several(self) -> bool:
        """Whether one of its GPUs has several tenants."""
        tenants = {process.tenant for process in self.processes if process.role != "asks"}
        return len(tenants) > 1 or bool(tenants and any(gpu.assigned for gpu in self.gpus))


def _taken(row: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The fields of `row` with these names, removed from it."""
    return {name: row.pop(name) for name in [*row] if name in names}


def _diagnosis(words: str) -> Diagnosis:
    return Diagnosis(*words.split())


def _expected(row: dict[str, Any]) -> Expected:
    alert, besides = row.pop("told", ""), row.pop("besides", ())
    return Expected(
        _diagnosis(alert) if alert else None,
        row.pop("primary", None),
        frozenset(map(_diagnosis, besides)),
        row.pop("at", JUDGED_SECONDS),
    )


def _phase(row: dict[str, Any]) -> Phase:
    return Phase(Work(**_taken(row, _WORK)), **_taken(row, {"busy", "since"}))


def _gpu(row: dict[str, Any]) -> Gpu:
    """Raises TypeError if it has an unknown field."""
    phases = tuple(_phase({**phase}) for phase in row.pop("phases", ())) or (_phase(row),)
    model = _MODELS[row.pop("model", "H100")]
    return Gpu(phases, _expected(row), _taken(row, HAPPENS), model=model, **row)


def _process(told: str | dict[str, Any]) -> Process:
    return Process(told) if isinstance(told, str) else Process(**told)


def _case(name: str, row: dict[str, Any], *, alone: bool) -> Case:
    of_case = _taken(row, {"exporter_ends", "exporter_returns", "cluster"})
    processes = tuple(map(_process, row.pop("processes", ["trains"])))
    node, gpus = _expected({**row.pop("node", {})}), row.pop("gpus", 1)
    rows = gpus if isinstance(gpus, list) else [row] * gpus
    return Case(name, tuple(_gpu({**item}) for item in rows), processes, alone, node, **of_case)


def _cases() -> Iterable[Case]:
    for section, rows in beside(__file__, "situations.yml").items():
        for name, row in rows.items():
            ill = {**row}
            twin = ill.pop("twin", None)
            yield _case(name, {**ill}, alone=section == "nodes")
            if twin is not None:
                of_ill = {"told", "primary", "besides", "at"}
                well = {field: value for field, value in ill.items() if field not in of_ill}
                yield _case(name + NOT_QUITE, {**well, **twin}, alone=False)


CASES = tuple(_cases())
