"""Faults that last for many hours are told of until they are over."""

from __future__ import annotations

from pathlib import Path

from rules.fleet import Fleet, add_gpu
from rules.test_health_and_jobs import EXPORTER_DOWN, LOST, lean

HOUR = 60
MINUTES = 9 * HOUR
SELDOM = "4m"
"""Asked for by the hour; a recorded value lasts for five minutes."""
REBOOT = (HOUR, 2 * HOUR + 30)


def test_an_exporter_is_down_for_as_long_as_it_is_a_target(tmp_path: Path) -> None:
    fleet = Fleet(MINUTES, evaluation_interval=SELDOM)
    add_gpu(fleet, "down", lean())
    fleet.fail_scrapes("down", HOUR, MINUTES + 1)
    add_gpu(fleet, "gone", lean())
    fleet.fail_scrapes("gone", HOUR, MINUTES + 1)
    fleet.end("gone", 5 * HOUR)
    for hour in (2, 4, 7, 8, 9):
        fleet.expect_firing("down", hour * HOUR, EXPORTER_DOWN)
    fleet.expect_firing("gone", 4 * HOUR, EXPORTER_DOWN)
    fleet.expect_firing("gone", 6 * HOUR)
    fleet.check(tmp_path)


def test_a_gpu_that_is_missing_after_a_reboot_is_missed(tmp_path: Path) -> None:
    fleet = Fleet(MINUTES, evaluation_interval=SELDOM)
    for node in ("rebooted", "replaced", "back"):
        add_gpu(fleet, node, lean())
        add_gpu(fleet, node, lean(), index=1)
        fleet.fail_scrapes(node, *REBOOT)
    fleet.remove("GPU-rebooted-1", REBOOT[0])
    fleet.remove("GPU-replaced-0", REBOOT[0])
    fleet.remove("GPU-replaced-1", REBOOT[0])
    add_gpu(fleet, "replaced", lean(uuid="GPU-another"), index=2)
    fleet.remove("GPU-another", 0, REBOOT[1])
    for minutes in (HOUR - 2, 3 * HOUR, 6 * HOUR, 9 * HOUR):
        fleet.expect_firing("rebooted", minutes, *([LOST] if minutes > HOUR else []))
        fleet.expect_firing("replaced", minutes)
        fleet.expect_firing("back", minutes)
    fleet.check(tmp_path)
