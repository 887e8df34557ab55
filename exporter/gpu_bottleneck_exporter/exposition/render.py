"""Renders the sampler's state in Prometheus' exposition formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector as Registrable
from prometheus_client.utils import floatToGoString

from gpu_bottleneck_exporter.exposition import own
from gpu_bottleneck_exporter.exposition.accept import prefers_openmetrics
from gpu_bottleneck_exporter.sampling.collector import (
    Collector,
    Family,
    Histogram,
    Series,
    series,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState

GPU_LABELS = ("gpu", "uuid")
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Encoder = Callable[[Registrable], bytes]
_ENCODERS: dict[str, Encoder] = {
    TEXT_TYPE: generate_latest,
    # Names need no escaping, which takes a third of the library's time.
    OPENMETRICS_TYPE: partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8),
}
_number: Callable[[float], str] = floatToGoString
_EOF = b"# EOF\n"


class Exposition:
    """Renders scrapes. Scrapes within one tick share a rendering, which bounds the cost of a crowd.

    Series of unchanged parts are reused, and only new values are replaced in a family's text. Not
    thread-safe.
    """

    def __init__(self, sampler: Sampler, collectors: Sequence[Collector]) -> None:
        self._sampler = sampler
        self._collectors = collectors
        self._process = ProcessCollector(registry=None)
        self._last: dict[str, tuple[object, bytes]] = {}
        self._shown: dict[tuple[str, Labels], _Shown] = {}
        """Series by collector and GPU."""
        self._texts: dict[str, dict[str, _Text]] = {}
        """Texts by content type and family."""

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Body and content type, OpenMetrics or text by the Accept header.

        Families come in the order of declaration, without empty ones.
        """
        # The requested version is ignored, or clients could fill the cache.
        content_type = OPENMETRICS_TYPE if prefers_openmetrics(accept) else TEXT_TYPE
        self._sampler.refresh()
        state = self._sampler.state()
        key = _version_of(state)
        last_key, body = self._last.get(content_type, (None, b""))
        # Without GPUs, nothing in the key changes as time passes.
        if last_key != key or not state.gpus:
            body = self._body(state, content_type)
            self._last[content_type] = key, body
        return body, content_type

    def _body(self, state: SamplerState, content_type: str) -> bytes:
        encode, last = _ENCODERS[content_type], self._texts.get(content_type, {})
        texts = {
            family.name: _text(family, by_gpu, last.get(family.name), encode)
            for family, by_gpu in self._families(state)
        }
        self._texts[content_type] = texts
        parts = [*(text.text for text in texts.values()), encode(self._process)]
        if content_type == TEXT_TYPE:
            return b"".join(parts)
        return b"".join(part.removesuffix(_EOF) for part in parts) + _EOF

    def _families(self, state: SamplerState) -> Iterator[tuple[Family, ByGpu]]:
        last, self._shown = self._shown, {}
        host, labelled = state.host, [(_labels(gpu), gpu) for gpu in state.gpus]
        for collector in (own.UP, *self._collectors):
            sources: list[tuple[Labels, object]] = (
                [((), host and host.machine)]
                if collector.of_machine
                else [(labels, collector.source(gpu)) for labels, gpu in labelled]
            )
            parts = []
            for labels, source in sources:
                key = collector.name, labels
                shown = last.get(key)
                if shown is None or shown.source != source:
                    shown = _Shown(source, collector.series(source))
                self._shown[key] = shown
                parts.append((labels, shown.series))
            yield from _by_family(collector.families, parts)
        yield from _by_family(tuple(own.EXPORTER), [((), series(own.EXPORTER, state))])


class _Shown(NamedTuple):
    """The series that a collector made from a part of a GPU, by family."""

    source: object
    series: list[list[Series]]


class _Text(NamedTuple):
    """The text of a family, and its content."""

    by_gpu: ByGpu
    labels: list[object] | None
    """All labels in order: equal ones mean that only values differ. None: unknown lines."""
    values: list[float]
    """The value of each line."""
    text: bytes


class _SingleMetric(Registrable):
    """A collector of one metric, for the encoders."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _version_of(state: SamplerState) -> object:
    """A key that is equal for states with the same samples."""
    gpus = [
        (
            *(g.identity.uuid, g.up, g.at_ns, bool(g.readings)),
            *(g.feeding and g.feeding.at_ns, g.assigned, g.unlisted_pids),
        )
        for g in state.gpus
    ]
    return state.system, gpus, state.host and state.host.at_ns


Labels = tuple[str, ...]
"""Values of `GPU_LABELS`; empty for the host."""
ByGpu = list[tuple[Labels, list[Series]]]
"""The series of a family by GPU, without GPUs that lack it."""


def _labels(gpu: GpuSnapshot) -> Labels:
    return str(gpu.identity.index), gpu.identity.uuid


def _by_family(
    families: Iterable[Family], parts: Sequence[tuple[Labels, list[list[Series]]]]
) -> Iterator[tuple[Family, ByGpu]]:
    for at, family in enumerate(families):
        if by_gpu := [(labels, shown[at]) for labels, shown in parts if shown[at]]:
            yield family, by_gpu


def _text(family: Family, by_gpu: ByGpu, last: _Text | None, encode: Encoder) -> _Text:
    """The text of `family`, from as much as possible of the `last` one."""
    if last and last.by_gpu == by_gpu:
        return last
    labels, values = _flat(by_gpu)
    if last is None or last.labels != labels:
        encoded = encode(_SingleMetric(_metric(family, by_gpu)))
        replaceable = encoded.removesuffix(_EOF).count(b"\n") == len(values) + 2  # HELP and TYPE
        return _Text(by_gpu, labels if replaceable else None, values, encoded)
    first, second, *lines = last.text.decode().split("\n")
    changed = [
        line if value == before else f"{line[: line.rindex(' ')]} {_number(value)}"
        for line, value, before in zip(lines, values, last.values)  # noqa: B905 - the end follows
    ]
    text = "\n".join([first, second, *changed, *lines[len(values) :]])
    return _Text(by_gpu, labels, values, text.encode())


def _flat(by_gpu: ByGpu) -> tuple[list[object], list[float]]:
    """All labels, and the value of each line, in order."""
    all_labels: list[object] = []
    values: list[float] = []
    for of_gpu, shown in by_gpu:
        all_labels.append(of_gpu)
        for labels, value in shown:
            all_labels.append(labels)
            if isinstance(value, Histogram):
                buckets = _buckets(value)
                all_labels.append([bound for bound, _ in buckets])
                values += [*(count for _, count in buckets), buckets[-1][1], value.sum]
            else:
                values.append(value)
    return all_labels, values


def _metric(family: Family, by_gpu: ByGpu) -> Metric:
    names = (*(GPU_LABELS if by_gpu[0][0] else ()), *family.labels)
    metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
    for of_gpu, shown in by_gpu:
        for labels, value in shown:
            pairs = dict(zip(names, (*of_gpu, *labels), strict=True))
            if family.name.startswith(("gpu_info", "gpu_workload_info", "gpu_tenant_")):
                pairs = {name: text for name, text in pairs.items() if text}
            if isinstance(value, Histogram):
                _add_histogram(metric, pairs, value)
            else:
                metric.add_sample(family.name, pairs, value)
    return metric


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    """The cumulative counts by upper bound, with that of all."""
    total = histogram.buckets[-1][1] if histogram.buckets else 0
    return [*((f"{bound}", count) for bound, count in histogram.buckets), ("+Inf", total)]


def _add_histogram(metric: Metric, pairs: dict[str, str], histogram: Histogram) -> None:
    buckets = _buckets(histogram)
    for bound, count in buckets:
        metric.add_sample(f"{metric.name}_bucket", {**pairs, "le": bound}, count)
    metric.add_sample(f"{metric.name}_count", pairs, buckets[-1][1])
    metric.add_sample(f"{metric.name}_sum", pairs, histogram.sum)
