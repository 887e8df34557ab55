"""Samples of a scrape, by names and labels."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.sampling.sampler import Sampler


def shown(sampler: Sampler) -> Metrics:
    """Metrics of a scrape of a sampler now."""
    return Metrics(Exposition(sampler, ALL).render()[0].decode())


class Metrics:
    """One exposition."""

    def __init__(self, text: str) -> None:
        self.samples = [s for f in text_string_to_metric_families(text) for s in f.samples]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}

    @property
    def feeders(self) -> set[str]:
        """Families about the processes that feed GPUs, and their owners."""
        prefixes = ("gpu_feeder_", "gpu_workload_")
        return {name for name in self.names if name.startswith(prefixes)}

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Values of `name` with `labels`, by `label`."""
        samples = self.samples_of(name, **labels)
        return {sample.labels[label]: sample.value for sample in samples}

    def samples_of(self, name: str, **labels: str) -> list[Sample]:
        values = (sample for sample in self.samples if sample.name == name)
        return [sample for sample in values if labels.items() <= sample.labels.items()]

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over the series `name` with `labels`; None if there are none."""
        result = self.samples_of(name, **labels)
        return sum(sample.value for sample in result) if result else None

    def of(self, gpu: str, name: str) -> float:
        return self.by("gpu", name, gpu=gpu)[gpu]

    def waited_on(self, gpu: str) -> set[str]:
        stalls = self.by("waiting_on", "gpu_stall_seconds_total", gpu=gpu)
        return {cause for cause, seconds in stalls.items() if seconds}

    @property
    def signals(self) -> dict[str, float]:
        return self.by("signal", "gpu_exporter_signal_available")

    @property
    def missing(self) -> set[str]:
        return {signal for signal, result in self.signals.items() if not result}
