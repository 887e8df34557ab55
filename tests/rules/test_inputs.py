"""What is recorded from the exporter's metrics where there is more than one way to say it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rules.fleet import Fleet, Gpu, add_gpu

END = 30
HALF = Gpu(power_watts=560.0, energy_watts=350.0)
"""Draws 350 W; the moments at which its power was read say 560 W."""
OWNER = {"workload_namespace": "nlp", "workload_pod": "serve-0", "pod_uid": "77aa"}
BOARD = "GPU-mig-0"
CLUSTER = {"cluster": "mig"}


def test_inputs(tmp_path: Path) -> None:
    fleet = Fleet(END)
    power(fleet)
    divided_board(fleet)
    fleet.check(tmp_path)


def power(fleet: Fleet) -> None:
    """Taken from the energy where no time is missing."""
    for node, minutes, gpu, watts in (
        ("energy", END, HALF, 350),
        ("no-energy", END, replace(HALF, energy_watts=None), 560),
        # 60 s of its counters are gone; the driver's go on.
        ("restarted", 20, replace(HALF, reset_at=18), 560),
        ("restarted-long-ago", END, replace(HALF, reset_at=18), 350),
        ("not-scraped", 21, replace(HALF, gap=(19, 25)), 560),
    ):
        add_gpu(fleet, node, gpu)
        query = f'round(sum(gpu:power:ratio_avg5m{{instance="{node}"}}) * 700)'
        fleet.expect(minutes, query, {"{}": watts})


def divided_board(fleet: Fleet) -> None:
    """It is not held, but its instances are.

    The board has their processes and is busy for a part of the time.
    """
    board = Gpu(busy=0.14, stalls={"peer": 0.73, "asleep": 0.13}, owner=OWNER, uuid=BOARD)
    board.throttle = {"hw_thermal": 0.5}
    slices = [
        Gpu(busy=0.99, owner=OWNER, uuid="MIG-1", parent_uuid=BOARD),
        Gpu(processes=0, memory=0.0, busy=0.0, uuid="MIG-2", parent_uuid=BOARD, feeders=False),
    ]
    for gpu in (board, *slices):
        add_gpu(fleet, "mig", replace(gpu, target=CLUSTER))
    other = {**OWNER, "pod_uid": "88bb"}
    whole = Gpu(owner=other, processes=0, memory=0.0, busy=0.0, feeders=False, target=CLUSTER)
    add_gpu(fleet, "whole", whole)
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
