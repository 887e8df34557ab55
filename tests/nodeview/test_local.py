"""A node with real loops: what its own pages show, and what others read from its metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.run import running
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.nodeview.local import LocalNode
from gpu_bottleneck_exporter.nodeview.metrics import reading_of
from gpu_bottleneck_exporter.nodeview.model import Reading
from gpu_bottleneck_exporter.settings import Settings
from support.samplers import sampling
from support.waiting import until


def advised(now: Reading) -> dict[str, str]:
    """By GPU, the knob to change or the reason why there is none."""
    told = {g.key.gpu: g.prescription.knob if g.prescription else g.refused for g in now.gpus}
    return {gpu: text for gpu, text in told.items() if text}


def test_an_idle_gpu_gets_a_prescription_or_a_reason_here_and_in_metrics() -> None:
    with running() as demo, sampling(lambda: VirtualDriver(demo.board), Settings()) as sampler:
        node, exposition = LocalNode(sampler, ALL), Exposition(sampler, ALL)

        def metrics() -> Reading:
            return reading_of(text_string_to_metric_families(exposition.render()[0].decode()))

        until(lambda: advised(node.count()), "advice for a GPU that idles")
        # Between two readings the sampler may change its mind.
        until(lambda: advised(node.read()) == advised(metrics()) != {}, "the same from metrics")
