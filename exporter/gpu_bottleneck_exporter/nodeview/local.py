"""This process as a node: readings of its own sampler, and a thread that keeps a few of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpu_bottleneck_exporter.collectors.base import Collector
from gpu_bottleneck_exporter.exposition import Families
from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.ledger import GpuSnapshot
from gpu_bottleneck_exporter.nodeview.history import History
from gpu_bottleneck_exporter.nodeview.metrics import reading_of
from gpu_bottleneck_exporter.nodeview.model import (
    CollectorHealth,
    Counters,
    GpuReading,
    HostReading,
    Key,
    NodeView,
    Reading,
)
from gpu_bottleneck_exporter.remedies import OF_DOWN, of_driver
from gpu_bottleneck_exporter.sampler import Sampler

WINDOW_SECONDS = 60.0
KEPT_SECONDS = 300.0
STEP_SECONDS = 5.0


class LocalNode:
    """Readings of a sampler, with the reasons that metrics do not tell."""

    def __init__(self, sampler: Sampler, collectors: Sequence[Collector]) -> None:
        self._sampler = sampler
        self._all = Families(sampler, collectors)

    def read(self) -> Reading:
        """All there is to show."""
        reading = reading_of(self._all.collect())
        down, causes = self._sampler.down_reasons(), self._sampler.down_causes()
        seen = {
            gpu.identity.uuid: gpu.feeding.evidence
            for gpu in self._sampler.state().gpus
            if gpu.feeding
        }
        return replace(
            reading,
            gpus=tuple(
                replace(
                    g,
                    down=down.get(int(g.key.gpu)),
                    down_remedy=_down_remedy(causes, int(g.key.gpu)),
                    evidence=seen.get(g.key.uuid, ()),
                )
                for g in reading.gpus
            ),
            status=self._sampler.status,
            # Before that, it is being found out.
            remedy=of_driver(self._sampler.cause) if self._sampler.ready else None,
            collectors=_with_errors(reading.collectors, self._errors()),
        )

    def count(self) -> Reading:
        """The counters only, and not by way of metrics: a tenth of the work."""
        state = self._sampler.state()
        machine = state.host.machine if state.host else None
        return Reading(
            gpus=tuple(_counted(gpu) for gpu in state.gpus),
            host=HostReading() if machine is None else _host(machine),
        )

    def _errors(self) -> Mapping[str, str]:
        outcomes = self._sampler.state().outcomes
        return {name: outcome.error for name, outcome in outcomes if outcome.error}


class Recorder:
    """Keeps the last minutes of a node, one reading every 5 s."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        self._history = History(WINDOW_SECONDS, KEPT_SECONDS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        """Begin to keep readings."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def view(self) -> NodeView:
        """The node now."""
        reading = self._node.read()
        return self._history.view(time.monotonic(), reading)

    def _run(self) -> None:
        while not self._stop.is_set():
            reading = self._node.count()
            self._history.add(time.monotonic(), reading)
            self._stop.wait(STEP_SECONDS)


def _counted(gpu: GpuSnapshot) -> GpuReading:
    totals = gpu.totals
    key = Key(str(gpu.identity.index), gpu.identity.uuid)
    if totals.observed_ns is None:
        return GpuReading(key, up=gpu.up)
    sm_active_ns = totals.active_ns.get("sm")
    counters = Counters(
        observed=totals.observed_ns / 1e9,
        busy=totals.busy_ns / 1e9,
        stalls={cause: ns / 1e9 for cause, ns in (totals.stall_ns or {}).items()},
        sm_active=None if sm_active_ns is None else sm_active_ns / 1e9,
    )
    return GpuReading(key, up=gpu.up, counters=counters)


def _host(machine: Machine) -> HostReading:
    return HostReading(
        cpus=machine.cpus,
        cpu_busy_seconds=machine.cpu_busy_seconds,
        pressure_seconds={
            resource: ns / 1e9
            for (resource, kind), ns in machine.pressure_ns.items()
            if kind == "some"
        },
    )


def _with_errors(
    found: Sequence[CollectorHealth], errors: Mapping[str, str]
) -> tuple[CollectorHealth, ...]:
    return tuple(replace(collector, error=errors.get(collector.name)) for collector in found)


def _down_remedy(causes: Mapping[int, str | None], gpu: int) -> str | None:
    return of_driver(causes[gpu], OF_DOWN) if gpu in causes else None
