"""The scripts of the runbook of GpuReclaimable, on a webhook's body and with stand-ins."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from rules.fleet import RULES
from support.tools import require

PAGE = RULES / "runbooks/GpuReclaimable.md"
FENCE = re.compile(r"^```sh\n(#!.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = FENCE.findall(PAGE.read_text(encoding="utf-8"))
STAND_IN = """#!/bin/sh
echo "$(basename $0) $*" >> "$CALLS"
case "$*" in
*ownerReferences*) echo 7d1f ;;
*notebook-name*) echo eve ;;
*"get workload"*) echo workload.kueue.x-k8s.io/w1 ;;
esac
[ "$2" != -f ] || cat >> "$CALLS"
"""
IDLE = {"reason": "interactive_session"}
POD = {**IDLE, "workload_namespace": "nlp", "workload_pod": "eve-0"}
SLURM = {**IDLE, "slurm_job_id": "4711"}
HOSTILE = {**IDLE, "slurm_job_id": "1; touch /tmp/x", "workload_namespace": "a"}
ENDS = {
    "scancel": "scancel 4711",
    "Kueue": "kubectl -n nlp patch workload.kueue.x-k8s.io/w1 --dry-run=server --type merge "
    '-p {"spec":{"active":false}}',
    "Kubeflow": "kubectl -n nlp annotate notebook eve --dry-run=server kubeflow-resource-stopped=",
    "eviction": '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"eve-0"}}',
}
"""What each does at last, in the order of the page."""


@pytest.mark.parametrize("number", range(4), ids=list(ENDS))
def test_a_script_ends_the_job_that_fires_as_a_dry_run(number: int, tmp_path: Path) -> None:
    require("jq", "jq")
    for name in ("scancel", "kubectl", "logger"):
        (tmp_path / name).write_text(STAND_IN, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    alerts = [
        {"status": status, "labels": labels, "annotations": {"hours": "2.5"}}
        for status, labels in (
            *(("firing", labels) for labels in (POD, SLURM, HOSTILE)),
            ("resolved", {**POD, "workload_pod": "over-0"}),
            ("resolved", {**SLURM, "slurm_job_id": "12"}),
        )
    ]
    calls = tmp_path / "calls"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": f"{calls}"}
    command = ["sh", "-c", SCRIPTS[number], "reclaim", json.dumps({"alerts": alerts})]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stderr == ""
    called = calls.read_text(encoding="utf-8")
    acts = [*done.stdout.splitlines(), *called.splitlines()]
    assert len([line for line in acts if line.startswith([*ENDS.values()][number])]) == 1
    assert not re.search("over-0|12$|touch", called + done.stdout)
    dry = re.search("--dry-run=server|dryRun=All", called) if number else "scancel" not in called
    assert dry
