"""What is shown where nothing is known: silence is no good news."""

from __future__ import annotations

from pathlib import Path

from grafana.boards import EVERYTHING, Json, board, each_panel, filled, query
from rules.fleet import FILES, GROUPS, Fleet, Gpu, add_gpu

BAD_NEWS = {"Rules": "Not loaded"}
"""Texts that need not mention a lack of data: they name one."""


@each_panel
def test_an_empty_panel_claims_no_health(panel: Json) -> None:
    """It says that there is no data, or that there may be none; or nothing at all."""
    said = panel["fieldConfig"]["defaults"]["noValue"]
    assert said in {"-", BAD_NEWS.get(panel["title"])} or "no data" in said.lower()


def test_that_no_thresholds_are_loaded_is_shown(tmp_path: Path) -> None:
    """Whatever targets are chosen: the alert is of none, and no other one can fire."""
    fleet = Fleet(
        7,
        files=[file for file in FILES if file.name != "thresholds.yml"],
        groups=[name for name in GROUPS if name not in {"gpu-thresholds", "gpu-cause-order"}],
    )
    add_gpu(fleet, "well", Gpu())
    chosen = {"cluster": "one", "job": "gpu", "instance": "well"}
    row = '{alertname="GpuThresholdsMissing",owner="platform",severity="warning"}'
    fleet.expect(7, query("fleet", "Firing alerts", **chosen), {row: 1.0})
    for name in ("fleet", "exporter"):
        (mark,) = board(name)["annotations"]["list"]
        text = filled(mark["target"]["expr"], {**EVERYTHING, **chosen})
        fleet.expect(
            7, f"count by (alertname) ({text})", {'{alertname="GpuThresholdsMissing"}': 1.0}
        )
    fleet.check(tmp_path)
