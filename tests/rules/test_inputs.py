"""What is recorded from the exporter's metrics where there is more than one way to say it."""

from __future__ import annotations

from pathlib import Path

from rules.cases import gpu_of, gpus, rows
from rules.fleet import Fleet, add_gpu, changed

END = 30
BOARD = "GPU-mig-0"
CLUSTER = {"cluster": "mig"}


def test_inputs(tmp_path: Path) -> None:
    fleet = Fleet(END)
    power(fleet)
    divided_board(fleet)
    fleet.check(tmp_path)


def power(fleet: Fleet) -> None:
    for node, row in rows("power").items():
        add_gpu(fleet, node, gpu_of(row, "watts"))
        query = f'round(sum(gpu:power:ratio_avg5m{{instance="{node}"}}) * 700)'
        for minute, watts in row["watts"].items():
            fleet.expect(minute, query, {"{}": watts})


def divided_board(fleet: Fleet) -> None:
    for name, gpu in gpus("divided").items():
        node = "whole" if name == "whole" else "mig"
        add_gpu(fleet, node, changed(gpu, target=CLUSTER))
    names = ("gpu:held:bool", "gpu:tenants:count", "gpu:gate:warm", "gpu:group:size")
    for name, here in zip(names, ({"MIG-1": 1, "MIG-2": 0}, *[{"MIG-1": 1}] * 3), strict=True):
        query = f'sum by (uuid) ({name}{{instance="mig"}})'
        fleet.expect(END, query, {f'{{uuid="{uuid}"}}': value for uuid, value in here.items()})
    for name, count in (("held", 2), ("free", 1)):
        series = f'cluster:gpus_{name}:count{{cluster="mig"}}'
        fleet.expect(END, series, {series: count})
    # Faults and heat are the board's, and its only cause.
    told = {f'{{cause="hw_slowdown",uuid="{BOARD}"}}': 1}
    fleet.expect(END, 'sum by (cause, uuid) (gpu:bottleneck:primary{instance="mig"})', told)
