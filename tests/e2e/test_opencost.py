"""OpenCost's queries on a real Prometheus that scrapes a shared GPU and evaluates the rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.rulepack import Changes, adapted, files
from grafana.live import served
from rules.fleet import JOB, Fleet, Gpu
from rules.tenants import UNATTRIBUTED, Tenant, add_shared, pod
from support.prometheus import Prometheus, prometheus
from support.quickrules import MODEST
from support.waiting import until

FACTOR = 60
"""Five minutes are as many seconds."""
NEEDED = ("thresholds.yml", "recording.yml", "opencost.yml")
QUERY = "{0}({0}_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{{container!=''}}[10s]))"
BY = "by (container, pod, namespace, uid, cluster_id)"
USED = {"train": 0.56, "serve": 0.24}
BUSY = 0.9


def shares(server: Prometheus, function: str) -> Mapping[str, float]:
    samples = server.query(f"{QUERY.format(function)} {BY}")
    assert all({*of} == {"container", "pod", "namespace"} for of, _ in samples)
    return {of["pod"]: value for of, value in samples}


def test_each_pod_of_a_shared_gpu_has_its_part(tmp_path: Path) -> None:
    made = Fleet(30)
    tenants = [pod(name, used, waits={"asleep": 0.05}) for name, used in USED.items()]
    gpu = Gpu(busy=BUSY, stalls={"asleep": 0.1})
    add_shared(made, "shared", gpu, [*tenants, Tenant(UNATTRIBUTED, 0.1)])
    # Half of the busy time of no process each.
    expected = pytest.approx({name: used + 0.05 for name, used in USED.items()}, abs=0.05)
    paths = []
    for name, text in adapted(files(), Changes(opencost=True, scale=FACTOR)).items():
        if name in NEEDED:
            paths.append(tmp_path / name)
            paths[-1].write_text(re.sub(r"(?m)^( *interval: ).*$", r"\g<1>1s", text))
    honest = {JOB: {"honor_labels": True}}
    with (
        served(made) as target,
        prometheus(tmp_path, [(JOB, target, 0.5)], paths, MODEST, honest) as server,
    ):
        for function in ("avg", "max"):
            until(lambda: shares(server, function) == expected, lambda: shares(server, function))  # noqa: B023
        ratio = "sum(sum_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{pod='%s'}[10s]))"
        parts = f"{ratio % 'train'} / {ratio % 'serve'}"
        until(lambda: server.value(parts) == pytest.approx(0.61 / 0.29, abs=0.2), parts)
        memory = "sum by (pod) (DCGM_FI_DEV_FB_USED)"
        expected_memory = [({"pod": name}, 1024.0) for name in sorted(USED)]
        until(
            lambda: sorted(server.query(memory), key=lambda of: of[0]["pod"]) == expected_memory,
            memory,
        )
