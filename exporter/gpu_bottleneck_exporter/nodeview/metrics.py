"""Builds a reading from metric families."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Metric

from gpu_bottleneck_exporter.nodeview.model import (
    CollectorHealth,
    GpuReading,
    GpuTime,
    HostReading,
    Key,
    Reading,
)
from gpu_bottleneck_exporter.nodeview.outlook import Change, LastChange
from gpu_bottleneck_exporter.prescription.model import KNOBS, REFUSALS

Labels = Mapping[str, str]
_NOBODY = Key("", "")
_OWN_LABELS = ("gpu", "uuid")
_MOST = 1e6
"""More than any machine has of processes or cores."""


class Samples:
    """The samples of one GPU, or of the node as a whole, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[tuple[Labels, float]]] = defaultdict(list)

    def add(self, name: str, labels: Labels, value: float) -> None:
        """Add a sample."""
        self._by_name[name].append((labels, value))

    def value(self, name: str, **wanted: str) -> float | None:
        """The value of the first sample with these labels; None if there is none."""
        return next((value for _, value in self._matching(name, wanted)), None)

    def labels(self, name: str) -> list[Labels]:
        """Labels of all samples of an info-style family."""
        return [labels for labels, _ in self._by_name.get(name, ())]

    def by(self, name: str, label: str, **wanted: str) -> dict[str, float]:
        """Values by `label`, of the samples with the labels `wanted`."""
        found = self._matching(name, wanted)
        return {labels[label]: value for labels, value in found if label in labels}

    def _matching(self, name: str, wanted: Labels) -> Iterator[tuple[Labels, float]]:
        return (one for one in self._by_name.get(name, ()) if wanted.items() <= one[0].items())


def reading_of(metrics: Iterable[Metric]) -> Reading:
    """The reading that `metrics` describe; ignores families of other programs."""
    by_gpu: dict[Key, Samples] = defaultdict(Samples)
    for metric in metrics:
        if metric.name.startswith("gpu_"):
            for sample in metric.samples:
                key = Key(sample.labels.get("gpu", ""), sample.labels.get("uuid", ""))
                by_gpu[key].add(sample.name, sample.labels, sample.value)
    node = by_gpu.pop(_NOBODY, Samples())
    drivers = (_label(samples, "gpu_info", "driver_version") for samples in by_gpu.values())
    return Reading(
        gpus=tuple(_gpu(key, samples) for key, samples in by_gpu.items()),
        host=_host(node),
        version=_label(node, "gpu_exporter_build_info", "version"),
        driver_version=next(filter(None, drivers), None),
        simulated=node.value("gpu_exporter_simulated") == 1,
        collectors=tuple(_collectors(node)),
        signals={
            name: value == 1
            for name, value in node.by("gpu_exporter_signal_available", "signal").items()
        },
    )


def _gpu(key: Key, samples: Samples) -> GpuReading:
    return GpuReading(
        key=key,
        up=samples.value("gpu_up") != 0,
        name=_label(samples, "gpu_info", "name"),
        mig_profile=_label(samples, "gpu_info", "mig_profile"),
        counters=_counters(samples),
        power_watts=samples.value("gpu_power_watts"),
        power_limit_watts=samples.value("gpu_power_limit_watts"),
        temperature=samples.value("gpu_temperature_celsius", sensor="gpu"),
        slowdown_temperature=samples.value("gpu_temperature_limit_celsius", limit="slowdown"),
        memory_used_bytes=samples.value("gpu_memory_used_bytes"),
        memory_total_bytes=samples.value("gpu_memory_total_bytes"),
        sm_clock=samples.value("gpu_clock_hertz", clock="sm"),
        sm_clock_max=samples.value("gpu_clock_max_hertz", clock="sm"),
        held_down_by=tuple(
            reason for reason, on in samples.by("gpu_throttle_active", "reason").items() if on
        ),
        xids=samples.by("gpu_xid_errors_total", "xid"),
        trouble=tuple(_trouble(samples)),
        processes=samples.value("gpu_processes"),
        workers=samples.value("gpu_feeder_processes", role="worker"),
        owners=tuple(_owner(labels) for labels in samples.labels("gpu_workload_info")),
        prescription=_prescription(samples),
        refused=_refused(samples),
        last_change=_last_change(samples),
    )


def _counters(samples: Samples) -> GpuTime | None:
    observed = samples.value("gpu_observed_seconds_total")
    busy = samples.value("gpu_busy_seconds_total")
    if observed is None or busy is None:
        return None
    stalls = samples.by("gpu_stall_seconds_total", "waiting_on")
    return GpuTime(observed, busy, stalls, samples.value("gpu_sm_active_seconds_total"))


def _prescription(samples: Samples) -> Change | None:
    value, current = (_by_knob(samples, name, most=_MOST) for name in ("value", "current_value"))
    names = ("busy_ratio", "busy_low_ratio", "busy_high_ratio", "upper_bound")
    predicted, low, high, bound = (_by_knob(samples, name) for name in names)
    for knob in value.keys() & current.keys() & predicted.keys():
        return Change(
            knob,
            current[knob],
            value[knob],
            predicted[knob],
            low.get(knob),
            high.get(knob),
            at_most=bool(bound[knob]) if knob in bound else None,
        )
    return None


def _refused(samples: Samples) -> str | None:
    given = samples.by("gpu_prescription_refused", "reason")
    return next((reason for reason, on in given.items() if on and reason in REFUSALS), None)


def _last_change(samples: Samples) -> LastChange | None:
    predicted = _by_knob(samples, "scored_ratio")
    error = _by_knob(samples, "error_ratio", least=-1.0)
    for knob in predicted.keys() & error.keys():
        outcome = min(max(predicted[knob] + error[knob], 0.0), 1.0)
        return LastChange(knob, predicted[knob], outcome)
    return None


def _by_knob(
    samples: Samples, name: str, least: float = 0.0, most: float = 1.0
) -> dict[str, float]:
    """What makes sense of it: another exporter's metrics may hold anything."""
    given = samples.by(f"gpu_prescription_{name}", "knob")
    return {k: value for k, value in given.items() if k in KNOBS and least <= value <= most}


def _trouble(samples: Samples) -> Iterator[str]:
    if samples.value("gpu_row_remap_failed"):
        yield "a row remapping failed: replace the GPU"
    if samples.value("gpu_row_remap_pending"):
        yield "a row remapping is pending: reset the GPU"
    uncorrected = samples.value("gpu_ecc_errors_total", kind="uncorrected")
    if uncorrected:
        yield f"uncorrected ECC errors: {uncorrected:.0f}"
    width, widest = samples.value("gpu_pcie_link_width"), samples.value("gpu_pcie_link_width_max")
    if width and widest and width < widest:
        yield f"PCIe link runs on {width:.0f} of {widest:.0f} lanes"


def _owner(labels: Labels) -> dict[str, str]:
    return {name: text for name, text in labels.items() if text and name not in _OWN_LABELS}


def _host(node: Samples) -> HostReading:
    return HostReading(
        cpus=node.value("gpu_host_cpus"),
        cpu_busy_seconds=node.value("gpu_host_cpu_busy_seconds_total"),
        memory_total_bytes=node.value("gpu_host_memory_total_bytes"),
        memory_available_bytes=node.value("gpu_host_memory_available_bytes"),
        shm_size_bytes=node.value("gpu_host_shm_size_bytes"),
        shm_used_bytes=node.value("gpu_host_shm_used_bytes"),
        pressure_seconds=node.by("gpu_host_pressure_seconds_total", "resource", kind="some"),
    )


def _collectors(node: Samples) -> Iterator[CollectorHealth]:
    took = node.by("gpu_exporter_collector_duration_seconds", "collector")
    last = node.by("gpu_exporter_collector_last_success_timestamp_seconds", "collector")
    for name, success in node.by("gpu_exporter_collector_success", "collector").items():
        yield CollectorHealth(name, success == 1, took.get(name), last.get(name))


def _label(samples: Samples, family: str, label: str) -> str | None:
    return next((labels[label] for labels in samples.labels(family) if labels.get(label)), None)
