"""How many series the rules record for each GPU: what a fleet's Prometheus has to keep."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.prescription.model import NOTHING_KNOWN, Outlook
from rules.cases import gpu_of, rows
from rules.fleet import Fleet, add_gpu, changed
from support.states import PRESCRIBED, SCORED

END = 70
"""The windows of an hour are full."""
WORKING, STARVED = 90, 110


def test_a_gpu_adds_few_series(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="2m")
    everything = rows("recorded_bases")["everything"]
    for node, state in rows("recorded").items():
        is_starved = state.get("busy") != 0.95
        outlook = Outlook(PRESCRIBED, SCORED) if is_starved else NOTHING_KNOWN
        for index in range(2):
            add_gpu(fleet, node, changed(gpu_of({**everything, **state}), outlook=outlook), index)
        of_gpu = f'count({{__name__=~"[a-z]+:.+",instance="{node}",gpu="0"}})'
        most = STARVED if is_starved else WORKING
        fleet.expect(END, f"{of_gpu} > {most} or {of_gpu} < 20", {})
    fleet.check(tmp_path)
