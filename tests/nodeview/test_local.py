"""A node with real loops: what its document says of them is what its metrics say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.jobs import GPUS
from gpu_bottleneck_exporter.demo.run import running
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.nodeview.build import LocalNode
from gpu_bottleneck_exporter.nodeview.model import Gpu
from gpu_bottleneck_exporter.settings import Settings
from support.beside import repeated
from support.samplers import sampling
from support.waiting import until

ADVICE = {"gpu_prescription_value": "knob", "gpu_prescription_refused": "reason"}


def advised(gpus: Iterable[Gpu]) -> dict[str, str]:
    """By GPU, the knob to change or the reason why there is none."""
    found = {}
    for one in gpus:
        if one.prescription:
            found[one.gpu] = one.prescription.knob
        elif one.prescription_refused:
            found[one.gpu] = one.prescription_refused.reason
    return found


def in_metrics(text: str) -> Mapping[str, str]:
    """The same from a scrape."""
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {s.labels["gpu"]: s.labels[ADVICE[s.name]] for s in samples if s.name in ADVICE}


def test_a_node_has_the_shares_that_were_recorded_and_the_advice_of_metrics() -> None:
    with running() as board, sampling(lambda: VirtualDriver(board), Settings()) as sampler:
        local, exposition = LocalNode(sampler), Exposition(sampler, ALL)
        until(lambda: len(sampler.state().gpus) == GPUS, "the GPUs")
        assert [gpu.busy_ratio for gpu in local.read().gpus] == [None] * GPUS
        with repeated(local.record, 0.1):
            until(lambda: all(gpu.parts for gpu in local.read().gpus), "shares")
            until(lambda: all(any(gpu.trend) for gpu in local.read().gpus), "trends")
        until(lambda: advised(local.read().gpus), "advice for a GPU that idles")
        # Between two readings the sampler may change its mind.
        until(
            lambda: advised(local.read().gpus) == in_metrics(exposition.render()[0].decode()) != {},
            "the same from metrics",
        )
