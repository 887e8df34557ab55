"""Renders a report as CSV with the column names of FOCUS (focus.finops.org)."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timezone

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN, VIDEO_ENGINE, WAITING_ON
from gpu_bottleneck_exporter.jobs.model import JobGpu, Use, total
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, JobReport, energy_kwh

Cell = str | float | None


def focus(report: JobReport) -> str:
    """A row per owner, without the last line feed; an empty cell is unknown."""
    begin = report.time_seconds - report.query.seconds
    gpus: dict[str, list[JobGpu]] = defaultdict(list)
    for job in report.jobs:
        gpus[job.owner_name] += (gpu.since(begin) for gpu in job.gpus)
    lines = io.StringIO()
    writer = csv.DictWriter(lines, _row(report, "", Use(), None))
    writer.writeheader()
    for name, whole in report.owners.items():
        of = gpus[name]
        row = _row(report, name, total(of) if of else whole, energy_kwh(of))
        writer.writerow({column: _cell(value) for column, value in row.items()})
    return lines.getvalue().removesuffix("\n")


def _row(report: JobReport, owner: str, use: Use, kwh: float | None) -> Mapping[str, Cell]:
    begin = _time(report.time_seconds - report.query.seconds)
    end = _time(report.time_seconds)
    price, estimated = report.query.hourly_cost, use.estimated_seconds
    hours = use.observed_seconds / HOUR_SECONDS
    cost = None if price is None else price * hours
    lost = dict.fromkeys((wait for wait in WAITING_ON if wait != VIDEO_ENGINE), 0.0)
    for wait, seconds in use.stall_seconds.items():
        if wait != VIDEO_ENGINE:
            lost[wait if wait in lost else UNKNOWN] += seconds / HOUR_SECONDS
    return {
        "BillingPeriodStart": begin,
        "BillingPeriodEnd": end,
        "ChargePeriodStart": begin,
        "ChargePeriodEnd": end,
        "ChargeCategory": "Usage",
        "ServiceCategory": "Compute",
        "ServiceName": "GPU",
        "SubAccountName": owner,
        "ResourceType": "GPU",
        "ConsumedQuantity": hours,
        "ConsumedUnit": "GPU-Hours",
        "BilledCost": cost,
        "EffectiveCost": cost,
        "BillingCurrency": None if price is None else report.query.currency,
        "x_LostCost": report.cost(use),
        "x_BusyGpuHours": use.busy_seconds / HOUR_SECONDS,
        "x_LostGpuHours": use.lost_seconds / HOUR_SECONDS,
        **{f"x_LostGpuHours_{wait}": value for wait, value in lost.items()},
        "x_EstimatedGpuHours": None if estimated is None else estimated / HOUR_SECONDS,
        "x_EnergyKwh": kwh,
        "x_Co2Kg": report.co2_kg(kwh),
    }


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _cell(value: Cell) -> Cell:
    """`value`, so that no spreadsheet takes a name for a formula."""
    if isinstance(value, str):
        return f"'{value}" if re.match(r"\s*[=+\-@＝＋－＠]", value) else value  # noqa: RUF001
    return None if value is None else round(value, 6)
