"""Which GPUs could be given back: each reason before and after its hours, and every exclusion.

A row is a job with a node for each GPU; `told` is what it can be given back for, by minute.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.cases import gpu_of, node_of, row_of, rows, timeline
from rules.fleet import FILES as PACK
from rules.fleet import JOB, RULES, Fleet, add_gpu, changed, group_names, job
from rules.series import STALE, Phases

MINUTES = 300
FILES = (*PACK, RULES / "reclaim.yml")
GROUPS = group_names(*FILES)
NOT_ASKED = ("gpu-prescription", "gpu-bill", "gpu-coverage")
REASON = 'count by (reason) (gpu:reclaimable:info{{instance=~"{}-[0-9]+"}})'
ALERTS = 'ALERTS{alertstate="firing",alertname=~"GpuReclaimable.*",slurm_job_id="forgotten"}'
TAKEN = (
    "sum by (workload_owner, reason) (round(workload:reclaimed:{}"
    '{{slurm_job_id="it-works-when-it-would-have-been-ended"}}, 0.01))'
)
TOLD = {40: "", 72: "GpuReclaimableSoon", 110: "GpuReclaimableSoon", 132: "GpuReclaimable"}
"""The alerts about a job by minute."""
OF_FORGOTTEN = (
    'reason="allocated_idle",responder="job",severity="info",slurm_job_id="forgotten",user="ada",'
    'workload="Slurm job forgotten",workload_group="slurm-forgotten"'
)


def thresholds(folder: Path) -> Path:
    """A copy with hours that fit into a test: a third of those of sessions, a sixth of servers'."""
    text = FILES[0].read_text(encoding="utf-8")
    copy = folder / FILES[0].name
    copy.write_text(text.replace("vector(28800)", "vector(10800)").replace("86400", "14400"))
    return copy


@pytest.mark.first
def test_who_can_be_given_back_after_how_many_hours(tmp_path: Path) -> None:
    files = (thresholds(tmp_path), *FILES[1:])
    fleet = Fleet(MINUTES, files, GROUPS, evaluation_interval="4m", without=NOT_ASKED)
    for name, of_job in rows("reclaimable").items():
        for number, gpu in enumerate(of_job["gpus"]):
            row, node = row_of(gpu), f"{node_of(name)}-{number}"
            nobody = row.gpu.owners or row.gpu.engine or "nobody" in of_job
            add_gpu(fleet, node, row.gpu if nobody else changed(row.gpu, owner=job(node_of(name))))
            fleet.fail_scrapes(node, *(row.unscraped or (0, 0)))
        for at in timeline(of_job["told"], MINUTES):
            found = {} if at.cause == "-" else {f'{{reason="{at.cause}"}}': len(of_job["gpus"])}
            fleet.expect(at.minute, REASON.format(node_of(name)), found)
    for minute, alert in TOLD.items():
        told = f'ALERTS{{alertname="{alert}",alertstate="firing",{OF_FORGOTTEN}}}'
        fleet.expect(minute, ALERTS, {told: 1.0} if alert else {})
    of_node = '{{instance="forgotten-{}",workload_owner="ada"}}'
    for name, value in (("gpus", 1.0), ("gpu_hours", 4.93)):
        series = f'owner:reclaimable:{name}{{instance=~"forgotten-.*"}}'
        query = f"sum by (instance, workload_owner) ({series})"
        fleet.expect(296, f"round({query}, 0.01)", {of_node.format(n): value for n in range(2)})
    for minute, busy in ((116, None), (126, None), (212, 0.5), (298, 0.5)):
        known = '{reason="allocated_idle",workload_owner="ada"}'
        fleet.expect(minute, TAKEN.format("gpus"), {known: 1.0} if minute > 116 else {})
        fleet.expect(minute, TAKEN.format("busy_gpus"), {known: busy} if busy else {})
    given_to_another(fleet)
    fleet.check(tmp_path)


def given_to_another(fleet: Fleet) -> None:
    """Just before its hours are over, another job has the GPU, and has not opened it yet."""
    node = "given-to-another"
    jobs: dict[str, Phases] = {"1": [(118, 1.0), (1, STALE)], "2": [(118, None), (183, 1.0)]}
    add_gpu(fleet, node, gpu_of(rows("bases")["idle"]))
    target = {"job": JOB, "instance": node, "gpu": "0", "uuid": f"GPU-{node}-0"}
    for name, at in jobs.items():
        fleet.gauge("gpu_workload_info", at, **target, slurm_job_id=name)
    query = f'count by (slurm_job_id) (gpu:reclaimable:info{{instance="{node}"}})'
    for minute in (116, 128, 232):
        fleet.expect(minute, query, {})
    fleet.expect(248, query, {'{slurm_job_id="2"}': 1.0})
