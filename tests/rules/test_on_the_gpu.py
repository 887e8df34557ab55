"""Causes on the GPU and between the GPUs of a job: what fires, and what must not."""

from __future__ import annotations

from pathlib import Path

from rules.cases import add_job, add_row, firing, gpus, jobs, of_gpu, table
from rules.fleet import GROUPS, RULES, Fleet, Gpu, add_gpu, changed, job, told_of
from rules.parsed import groups

END = 50
"""Minutes that a fleet runs: enough for the longest `for`, half an hour."""
DAY = 1440
HEALTHY = Gpu()
ON_THE_GPU = gpus("on_the_gpu")


def test_several_gpus_of_one_job(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="2m")  # of `for`s of 5 minutes and more
    for section in ("imbalance", "straggler", "communication", "hang"):
        for name, ranks in jobs(section).items():
            add_job(fleet, name, ranks, END)
    fleet.check(tmp_path)


def test_one_gpu(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="2m")
    for name, row in table("one_gpu").items():
        add_row(fleet, name, row, END)
    fleet.check(tmp_path)


def test_oversized(tmp_path: Path) -> None:
    # A day is long: few evaluations, no more series than needed. Groups that are not named are
    # evaluated first, and alerts would look for what was recorded ten minutes ago.
    alerts = [group["name"] for group in groups((RULES / "alerts.yml").read_text())]
    fleet = Fleet(DAY + 70, groups=(*GROUPS, *alerts), evaluation_interval="10m")
    oversized = changed(HEALTHY, busy=0.1, sm=0.05, memory=0.1, pipes=None, feeders=False)
    cases = {
        "oversized": oversized,
        "larger": changed(oversized, busy=0.16),
        "fuller": changed(oversized, memory=0.21),
        "fuller-once": changed(oversized, memory=[(600, 0.1), (10, 0.5), (DAY, 0.1)]),
        "idle": changed(oversized, busy=0.0),
        "unreadable": changed(oversized, missing="gpu_memory_total_bytes"),
    }
    for node, gpu in cases.items():
        add_gpu(fleet, node, gpu)
    add_pair(fleet, oversized)
    query = (
        "count by (instance, severity) "
        '(ALERTS{alertstate="firing",alertname="GpuOversized",instance!="pair"})'
    )
    fleet.expect(DAY - 10, 'gpu:cause:evidence{cause="oversized_gpu"} == 1', {})
    fleet.expect(DAY + 60, query, {})
    fleet.expect(DAY + 70, query, {'{instance="oversized",severity="info"}': 1.0})
    fleet.expect_cause("oversized", DAY + 70, "unexplained_low_utilization")
    fleet.check(tmp_path)


def add_pair(fleet: Fleet, oversized: Gpu) -> None:
    """Of two GPUs the second one; its exporter is restarted, and scrapes fail for three minutes."""
    pod = {"workload_namespace": "nlp", "workload_pod": "serve-0", "pod_uid": "7d1f"}
    guilty = changed(oversized, owner=pod, reset_at=700)
    add_gpu(fleet, "pair", changed(guilty, busy=0.98, owner=job("healthy")))
    add_gpu(fleet, "pair", guilty, 1)
    fleet.fail_scrapes("pair", 900, 903)
    query = 'ALERTS{alertname="GpuOversized",instance="pair"}'
    second = firing("GpuOversized/info", "pair", **told_of(pod), **of_gpu("pair", 1))
    fleet.expect(DAY + 70, query, {second: 1.0})
