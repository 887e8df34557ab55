"""The exporter's view of a replayed GPU, as lines that do not depend on the moment or the host."""

from __future__ import annotations

import ctypes
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter.commands.check import check
from gpu_bottleneck_exporter.driver.nvml.driver import NvmlDriver
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.settings import Settings
from support.samplers import EVERY_TICK, sampling
from support.waiting import until

CAPTURES = sorted((Path(__file__).parents[1] / "captures").glob("*.jsonl"))
_OF_HOST = frozenset({"feeders", "host", "prescription", "stacks", "workload"})
SETTINGS = Settings(
    interval_seconds=0.2,
    deadline_seconds=5.0,
    disabled_collectors=_OF_HOST,
)
COLLECTORS = tuple(collector for collector in EVERY_TICK if collector.name not in _OF_HOST)
_SETTLED_NS = 1_500_000_000
"""Time in which each counter is read several times."""
_OMITTED = re.compile(r"gpu_(exporter|stall|window|unobserved)_")
_OF_DRIVER = re.compile(r"gpu_(throttle|ecc|pcie_replays|xid|row|remapped)")
"""Counters that the driver keeps: their value is the capture's."""
_SHARES = ("gpu_busy_seconds", "gpu_memory_controller_busy_seconds")
"""Counters that become a share of the observed time."""


def load(library: Path) -> NvmlDriver:
    """pynvml on `library`, which no process has loaded before."""
    pynvml.nvmlLib = ctypes.CDLL(str(library))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return NvmlDriver()


def judged(driver: NvmlDriver) -> str:
    """Gaps of `check`, and the GPUs' series of a scrape, a line each."""
    document = json.loads(dumps(check(SETTINGS, lambda: driver).document))
    with sampling(lambda: driver, SETTINGS, COLLECTORS) as sampler:
        until(lambda: sampler.state().gpus, "a GPU")
        due_ns = time.monotonic_ns() + _SETTLED_NS
        until(lambda: all(gpu.at_ns > due_ns for gpu in sampler.state().gpus), "some readings")
        text = Exposition(sampler, COLLECTORS).render()[0].decode()
    gaps = [gap for gap in document["gaps"] if gap["where"] and gap["where"][0] != "host"]
    lines = [f"# gap {gap['subject']}: {gap['problem']}" for gap in gaps]
    lines += [f"# not yet seen: {name}" for name in document.get("not_yet_seen", ())]
    return "\n".join([*lines, *series(text)]) + "\n"


def series(text: str) -> Iterator[str]:
    """The GPUs' series of an exposition; a counter of ours as a share, or whether it grows."""
    families = [f for f in text_string_to_metric_families(text) if f.name.startswith("gpu_")]
    observed = {
        sample.labels["uuid"]: sample.value
        for family in families
        for sample in family.samples
        if family.name == "gpu_observed_seconds"
    }
    up = next(family for family in families if family.name == "gpu_up")
    uuids = [sample.labels["uuid"] for sample in up.samples]
    instances = [uuid for uuid in uuids if uuid.startswith("MIG-")]
    names = dict.fromkeys(uuids, "gpu")
    names |= {uuid: f"instance {position}" for position, uuid in enumerate(instances)}
    for family in families:
        if not _OMITTED.match(family.name):
            yield from _series(family, names, observed)


def _series(family: Metric, names: dict[str, str], observed: dict[str, float]) -> Iterator[str]:
    for sample in family.samples:
        fields = {k: v for k, v in sample.labels.items() if k not in {"uuid", "parent_uuid"}}
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(fields.items()))
        value = f"{sample.value:.6g}"
        if family.name in _SHARES:
            value = f"{sample.value / observed[sample.labels['uuid']]:.2f} of the time"
        elif family.type == "counter" and not _OF_DRIVER.match(family.name):
            value = "grows" if sample.value else "0"
        yield f"{names[sample.labels['uuid']]} {sample.name}{{{labels}}} {value}"
