"""What is recorded for the dashboards: who has a GPU, since when a cause holds, sums by node."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.fleet import Fleet, Gpu, add_gpu

MINUTES = 60
POD = {"workload_namespace": "nlp", "workload_pod": "train-0", "pod_uid": "7d1f"}
STARVED = Gpu(busy=0.2, stalls={"storage": 0.8}, disk_busy=0.9, owner=POD)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(MINUTES)


def test_who_has_a_gpu(fleet: Fleet, tmp_path: Path) -> None:
    add_gpu(fleet, "pod", Gpu(owner=POD))
    add_gpu(fleet, "nobody-known", Gpu())
    add_gpu(fleet, "shared", Gpu(owners=[POD, {"user": "eve"}]))
    add_gpu(fleet, "assigned", Gpu(busy=0.0, processes=0, memory=0.0, feeders=False, owner=POD))
    add_gpu(fleet, "free", Gpu(busy=0.0, processes=0, memory=0.0, feeders=False))
    by = "instance, workload_namespace, workload_pod"
    owned = 'workload_namespace="nlp",workload_pod="train-0"'
    held = [f'instance="{name}",{owned}' for name in ("pod", "assigned")]
    held += ['instance="nobody-known"', 'instance="shared"']
    expected = {f"{{{labels}}}": 1.0 for labels in held}
    fleet.expect(30, f"sum by ({by}) (gpu:held:info)", expected)
    fleet.check(tmp_path)


def test_since_when(fleet: Fleet, tmp_path: Path) -> None:
    """It stays while the cause does, and is told anew for the next one."""
    changes = {"storage": [(25, 0.8), (99, 0.0)], "network": [(25, 0.0), (99, 0.8)]}
    add_gpu(fleet, "steady", STARVED)
    add_gpu(fleet, "changing", Gpu(busy=0.2, stalls=changes, disk_busy=0.9))
    add_gpu(fleet, "well", Gpu())
    since = "sum by (instance, cause) (gpu:bottleneck:since_timestamp)"
    steady = '{instance="steady",cause="local_storage_bound"}'
    before = '{instance="changing",cause="local_storage_bound"}'
    after = '{instance="changing",cause="network_storage_bound"}'
    began = {steady: 180.0, before: 180.0}
    fleet.expect(20, since, began)
    fleet.expect(59, since, {steady: 180.0, after: 29 * 60.0})
    fleet.check(tmp_path)


def test_the_loss_by_node_and_namespace(fleet: Fleet, tmp_path: Path) -> None:
    add_gpu(fleet, "two", STARVED)
    add_gpu(fleet, "two", STARVED, 1)
    labels = 'cause="local_storage_bound",instance="two",job="gpu",workload_namespace="nlp"'
    fleet.expect(30, "round(instance:lost_gpu_seconds:rate, 0.01)", {f"{{{labels}}}": 1.6})
    lost = "sum(cause:lost_gpu_seconds:rate) - sum(instance:lost_gpu_seconds:rate)"
    fleet.expect(30, lost, {"{}": 0.0})
    fleet.check(tmp_path)
