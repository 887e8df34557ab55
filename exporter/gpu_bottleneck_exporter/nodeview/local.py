"""This process as a node: readings of its sampler, and a thread that keeps some of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from gpu_bottleneck_exporter.driver.readings import Processes
from gpu_bottleneck_exporter.exposition.render import Families
from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.nodeview.history import History
from gpu_bottleneck_exporter.nodeview.metrics import reading_of
from gpu_bottleneck_exporter.nodeview.model import (
    GpuReading,
    GpuTime,
    HostReading,
    Key,
    NodeView,
    Reading,
)
from gpu_bottleneck_exporter.nodeview.outlook import change_of, last_change_of, refused
from gpu_bottleneck_exporter.prescription.model import NOTHING_KNOWN
from gpu_bottleneck_exporter.remedies import OF_SIGNALS
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot, GpuTotals
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState

WINDOW_SECONDS = 60.0
"""The span of the shares."""
KEPT_SECONDS = 300.0
"""The span of the trends."""
STEP_SECONDS = 5.0


class LocalNode:
    """Readings of a sampler, with the reasons, which metrics do not contain."""

    def __init__(self, sampler: Sampler, collectors: Sequence[Collector]) -> None:
        self._sampler = sampler
        self._all = Families(sampler, collectors)

    def read(self) -> Reading:
        """Everything there is to show."""
        reading = reading_of(self._all.collect())
        down, remedies = self._sampler.down_reasons(), self._sampler.down_remedies()
        state = self._sampler.state()
        ours = {gpu.key.uuid: gpu for gpu in counted(state).gpus}
        errors = {name: outcome.error for name, outcome in state.outcomes if outcome.error}
        return replace(
            reading,
            gpus=tuple(
                replace(
                    _told_in_full(g, ours.get(g.key.uuid, g)),
                    down=down.get(int(g.key.gpu)),
                    down_remedy=remedies.get(int(g.key.gpu)),
                )
                for g in reading.gpus
            ),
            status=self._sampler.status,
            # Until the sampler is ready, nothing is known about the driver.
            remedy=self._sampler.remedy if self._sampler.ready else None,
            collectors=tuple(replace(c, error=errors.get(c.name)) for c in reading.collectors),
            signal_remedies={
                name: OF_SIGNALS.get(name) or state.about.of_signal(name)
                for name, given in reading.signals.items()
                if not given
            },
        )

    def count(self) -> Reading:
        """The sampler's state, as `counted`."""
        return counted(self._sampler.state())


def counted(state: SamplerState) -> Reading:
    """The counters and what metrics do not contain; skips the metrics, for a tenth of the work."""
    machine = state.host.machine if state.host else None
    return Reading(
        gpus=tuple(_counted(gpu) for gpu in state.gpus),
        host=HostReading() if machine is None else _host(machine),
    )


class Recorder:
    """Keeps the last minutes of a node, one reading every 5 s."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        self._history = History(WINDOW_SECONDS, KEPT_SECONDS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def start(self) -> None:
        """Start keeping readings."""
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


def _told_in_full(gpu: GpuReading, ours: GpuReading) -> GpuReading:
    """`gpu`, read from metrics, with what they do not contain."""
    return replace(
        gpu,
        evidence=ours.evidence,
        prescription=ours.prescription,
        refused=ours.refused,
        last_change=ours.last_change,
    )


def _counted(gpu: GpuSnapshot) -> GpuReading:
    who = gpu.identity
    holders = gpu.reading(Processes)
    outlook = gpu.feeding.outlook if gpu.feeding else NOTHING_KNOWN
    return GpuReading(
        Key(str(who.index), who.uuid),
        up=gpu.up,
        name=who.name,
        mig_profile=who.mig_profile,
        counters=_time(gpu.totals),
        evidence=gpu.feeding.evidence if gpu.feeding else (),
        pids=None if holders is None else tuple(one.pid for one in holders.processes),
        prescription=change_of(outlook.advice),
        refused=refused(outlook.advice),
        last_change=last_change_of(outlook.score),
    )


def _time(totals: GpuTotals) -> GpuTime | None:
    if totals.observed_ns is None:
        return None
    sm_active_ns = totals.active_ns.get("sm")
    return GpuTime(
        observed=totals.observed_ns / 1e9,
        busy=totals.busy_ns / 1e9,
        stalls={cause: ns / 1e9 for cause, ns in (totals.stall_ns or {}).items()},
        sm_active=None if sm_active_ns is None else sm_active_ns / 1e9,
    )


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
