"""From the sampler's state to Prometheus' exposition formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector as Registrable

from gpu_bottleneck_exporter.exposition import own
from gpu_bottleneck_exporter.exposition.accept import prefers_openmetrics
from gpu_bottleneck_exporter.sampling.collector import Collector, Family, Histogram, Sample, samples
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState

GPU_LABELS = ("gpu", "uuid")
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_ENCODERS: dict[str, Callable[[Registrable], bytes]] = {
    TEXT: generate_latest,
    # Our names need no escaping; looking for what to escape takes a third of the library's time.
    OPENMETRICS: partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8),
}
_EOF = b"# EOF\n"
_LABELS_LEFT_OUT_WHEN_EMPTY = frozenset({"gpu_info", "gpu_workload_info"})


class Exposition:
    """Renders scrapes. Those within one tick share one rendering: what a crowd costs is bounded."""

    def __init__(self, sampler: Sampler, collectors: Sequence[Collector]) -> None:
        self._sampler = sampler
        self._collectors = collectors
        self._process = ProcessCollector(registry=None)
        self._last: dict[str, tuple[object, bytes]] = {}
        self._texts: dict[tuple[str, str], tuple[list[Labelled], bytes]] = {}
        """By content type and family: its samples at the last rendering, and their text."""

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Body and content type, OpenMetrics or text by the Accept header.

        Families come in the order in which collectors declare them, without those of no sample.
        """
        # Ignore the version that the client asks for, or it could fill the cache with keys.
        content_type = OPENMETRICS if prefers_openmetrics(accept) else TEXT
        self._sampler.refresh()
        state = self._sampler.state()
        key = _version_of(state)
        known, body = self._last.get(content_type, (None, b""))
        # Without GPUs, nothing in the key changes as time passes.
        if known != key or not state.gpus:
            body = self._body(state, content_type)
            self._last[content_type] = key, body
        return body, content_type

    def _body(self, state: SamplerState, content_type: str) -> bytes:
        encode = _ENCODERS[content_type]
        texts: list[bytes] = []
        for family, found in self._families(state):
            known = self._texts.get((content_type, family.name))
            # Most families have not changed since the last scrape, and encoding is what costs.
            if known is None or known[0] != found:
                known = found, encode(_One(_metric(family, found)))
                self._texts[content_type, family.name] = known
            texts.append(known[1])
        texts.append(encode(self._process))
        if content_type == TEXT:
            return b"".join(texts)
        return b"".join(text.removesuffix(_EOF) for text in texts) + _EOF

    def _families(self, state: SamplerState) -> Iterator[tuple[Family, list[Labelled]]]:
        for collector in (own.UP, *self._collectors):
            if collector.of_machine is None:
                of_gpus = ((_labels(gpu), collector.samples(gpu)) for gpu in state.gpus)
                yield from _by_family(collector.families, of_gpus)
            elif state.host is not None and state.host.machine is not None:
                of_machine = collector.of_machine(state.host.machine)
                yield from _by_family(collector.families, [((), of_machine)])
        yield from _by_family(own.EXPORTER, [((), samples(own.EXPORTER, state))])


class _One(Registrable):
    """The encoders take collectors."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _version_of(state: SamplerState) -> object:
    """Equal for two states with the same samples of GPUs and host."""
    gpus = [(g.identity.uuid, g.up, g.at_ns, g.feeding and g.feeding.at_ns) for g in state.gpus]
    return state.system, gpus, state.host and state.host.at_ns


Labels = tuple[str, ...]
"""Values of `GPU_LABELS`; none for what has no GPU."""
Labelled = tuple[Labels, Sample]


def _labels(gpu: GpuSnapshot) -> Labels:
    return str(gpu.identity.index), gpu.identity.uuid


def _by_family(
    families: Iterable[Family], parts: Iterable[tuple[Labels, Iterable[Sample]]]
) -> Iterator[tuple[Family, list[Labelled]]]:
    by_name: dict[str, list[Labelled]] = {}
    for labels, shown in parts:
        for sample in shown:
            by_name.setdefault(sample.family, []).append((labels, sample))
    for family in families:
        if found := by_name.get(family.name):
            yield family, found


def _metric(family: Family, labelled: list[Labelled]) -> Metric:
    names = (*(GPU_LABELS if labelled[0][0] else ()), *family.labels)
    metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
    for labels, sample in labelled:
        pairs = dict(zip(names, (*labels, *sample.labels), strict=True))
        if family.name in _LABELS_LEFT_OUT_WHEN_EMPTY:
            pairs = {name: value for name, value in pairs.items() if value}
        if isinstance(sample.value, Histogram):
            _add_histogram(metric, pairs, sample.value)
        else:
            metric.add_sample(family.name, pairs, float(sample.value))
    return metric


def _add_histogram(metric: Metric, pairs: dict[str, str], found: Histogram) -> None:
    total = found.buckets[-1][1] if found.buckets else 0
    for bound, count in (*found.buckets, ("+Inf", total)):
        metric.add_sample(f"{metric.name}_bucket", {**pairs, "le": str(bound)}, count)
    metric.add_sample(f"{metric.name}_count", pairs, total)
    metric.add_sample(f"{metric.name}_sum", pairs, found.sum)
