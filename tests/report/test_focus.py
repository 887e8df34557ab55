"""The report as CSV: its columns, sums, periods and inert names."""

from __future__ import annotations

import csv
import io
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_bottleneck_exporter.cli import commands
from gpu_bottleneck_exporter.jobs.model import Job, JobGpu, Timeline, Use, total
from gpu_bottleneck_exporter.report.bill import JobReport, ReportQuery
from gpu_bottleneck_exporter.report.focus import focus
from gpu_bottleneck_exporter.report.text import findings
from report.documents import HOSTILE, HOUR, NOW, Fields, bill, document, gpu, job, nodes
from support.command import run

DAY = 24 * HOUR


def table(report: JobReport, at: float = NOW) -> list[dict[str, str]]:
    report.time_seconds = at
    return [*csv.DictReader(io.StringIO(focus(report) + "\n", newline=""), strict=True)]


def rank(seconds: float = 0.0, joules: float = 7.2e6, **stalls: float) -> Fields:
    energy = {"estimated_seconds": seconds, "energy_joules": joules}
    return gpu(0, hours=4, **stalls) | energy


def test_a_row_has_an_owners_hours_cost_and_energy() -> None:
    jobs = [
        job("slurm-1", rank(1800.0, storage=0.25, video_engine=0.25)),
        job("slurm-2", rank(storage=0.5)),
        job("slurm-3", gpu(1, hours=2, asleep=1.0), user="bob"),
    ]
    flags = {"hourly_cost": 2.5, "currency": "USD", "co2_per_kwh": 300.0, "limit": 1}
    ada, bob = table(bill(document("node7", *jobs), **flags))
    assert {**ada} == {
        **dict.fromkeys(ada, "0.0"),
        "BillingPeriodStart": "2025-11-18T19:46:40Z",
        "BillingPeriodEnd": "2025-11-25T19:46:40Z",
        "ChargePeriodStart": "2025-11-18T19:46:40Z",
        "ChargePeriodEnd": "2025-11-25T19:46:40Z",
        "ChargeCategory": "Usage",
        "ServiceCategory": "Compute",
        "ServiceName": "GPU",
        "SubAccountName": "ada",
        "ResourceType": "GPU",
        "ConsumedQuantity": "8.0",
        "ConsumedUnit": "GPU-Hours",
        "BilledCost": "20.0",
        "EffectiveCost": "20.0",
        "BillingCurrency": "USD",
        "x_LostCost": "7.5",
        "x_BusyGpuHours": "4.0",
        "x_LostGpuHours": "3.0",
        "x_LostGpuHours_storage": "3.0",
        "x_EstimatedGpuHours": "0.5",
        "x_EnergyKwh": "4.0",
        "x_Co2Kg": "1.2",
    }
    assert (bob["SubAccountName"], bob["BilledCost"]) == ("bob", "5.0")
    assert [bob[f"x_{name}"] for name in ("EnergyKwh", "Co2Kg", "EstimatedGpuHours")] == [""] * 3


def test_lost_hours_by_cause_add_up_with_causes_of_newer_nodes() -> None:
    (row,) = table(bill(document("node7", job("slurm-1", rank(storage=0.2, **{"=cmd": 0.3})))))
    lost = {k: float(v) for k, v in row.items() if v and k.startswith("x_LostGpuHours_")}
    assert lost["x_LostGpuHours_unknown"] == pytest.approx(1.2)
    assert sum(lost.values()) == pytest.approx(float(row["x_LostGpuHours"]))
    assert not any("cmd" in column for column in row)


def test_without_a_price_costs_are_empty() -> None:
    (row,) = table(bill(document("node7", job("slurm-1", rank()))))
    names = "BilledCost", "EffectiveCost", "BillingCurrency", "x_LostCost", "x_Co2Kg"
    assert [row[name] for name in names] == [""] * 5
    assert row["x_EnergyKwh"] == "2.0"


def test_of_a_job_that_began_earlier_the_later_part_is_charged() -> None:
    lasting = gpu(0, hours=48, began=NOW - 60 * HOUR, storage=0.5)
    lasting |= {"energy_joules": 3.6e6, "estimated_seconds": 2 * HOUR}
    (row,) = table(bill(document("node7", job("slurm-1", lasting)), since=DAY))
    assert (row["ConsumedQuantity"], row["x_BusyGpuHours"]) == ("12.0", "6.0")
    assert (row["x_LostGpuHours"], row["x_LostGpuHours_storage"]) == ("6.0", "6.0")
    assert (row["x_EnergyKwh"], row["x_EstimatedGpuHours"]) == ("0.25", "0.5")


def test_parts_of_consecutive_periods_add_up() -> None:
    use, parts = JobGpu(gpu="0", uuid="u", start_seconds=NOW), []
    use.timeline = Timeline(NOW)
    for hour in range(1, 101):
        spent = Use(HOUR, HOUR / 4, {"asleep": HOUR * 3 / 4})
        use.add(spent)
        use.timeline.add(NOW + (hour - 1) * HOUR, NOW + hour * HOUR, spent)
        if hour % 20 == 0:
            parts.append(deepcopy(use.since(NOW + (hour - 20) * HOUR)))
    assert [part.observed_seconds for part in parts] == pytest.approx([20 * HOUR] * 5)
    assert total(parts).stall_seconds["asleep"] == pytest.approx(75 * HOUR)


def test_a_job_without_a_timeline_is_charged_whole() -> None:
    lasting = gpu(0, hours=48)
    del lasting["timeline"]
    (row,) = table(bill(document("node7", job("slurm-1", lasting)), since=DAY))
    assert row["ConsumedQuantity"] == "48.0"


def test_totals_of_a_prometheus_have_no_energy() -> None:
    use = Job(7200.0, 3600.0, {"asleep": 3600.0}, None, id="slurm-1", owner={"owner": "vision"})
    (row,) = table(JobReport(ReportQuery(hourly_cost=1.0), [use]))
    assert (row["SubAccountName"], row["ConsumedQuantity"], row["BilledCost"]) == (
        *("vision", "2.0", "2.0"),
    )
    assert (row["x_EnergyKwh"], row["x_EstimatedGpuHours"]) == ("", "")


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "＝", " =", "\t=", "\u00a0@"])  # noqa: RUF001
def test_no_name_is_a_formula(sign: str) -> None:
    name = f'{sign}HYPERLINK("http://x";"a"),\r\n2'
    use = Job(Use(1.0).observed_seconds, id="a", owner={"user": name})
    (row,) = table(JobReport(ReportQuery(hourly_cost=1.0, currency=name), [use]))
    assert row["SubAccountName"] == row["BillingCurrency"] == f"'{name}"
    (row,) = table(JobReport(ReportQuery(), [replace(use, owner={"user": f"a{name}"})]))
    assert row["SubAccountName"] == f"a{name}"


def test_lines_end_as_in_rfc_4180_and_the_header_is_always_there() -> None:
    hostile = document(HOSTILE, job("slurm-1", rank(), user=HOSTILE))
    with nodes({"full": hostile, "empty": document("node8")}) as urls:
        for name, count in (("full", 2), ("empty", 1)):
            done = CliRunner().invoke(commands, ["report", "--url", urls[name], "--format", "csv"])
            assert done.exit_code == 0
            *lines, rest = done.stdout_bytes.split(b"\r\n")
            assert (len(lines), rest) == (count, b"")
            assert lines[0].startswith(b"BillingPeriodStart,BillingPeriodEnd,")
            assert not {*b"\r\n\x1b"} & {*b"".join(lines)}


def test_emissions_need_energy() -> None:
    ranks = [rank(), rank() | {"gpu": "1", "uuid": "GPU-1"}]
    for co2, count in ((250.0, 1), (None, 0)):
        report = bill(document("node7", job("slurm-1", *ranks)), co2_per_kwh=co2)
        lines = [*findings(report, report.jobs[0])]
        assert lines.count("Energy: 4 kWh, 1 kg of CO2") == count
    del ranks[1]["energy_joules"]
    report = bill(document("node7", job("slurm-1", *ranks)), co2_per_kwh=250.0)
    assert not any("CO2" in line for line in findings(report, report.jobs[0]))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--co2-per-kwh 300 --prometheus localhost:1",
            "--co2-per-kwh needs the energy of ledgers: omit --prometheus",
        ),
        ("--co2-per-kwh 3000", "3000 is not in the range 0 to 2000"),
        ("--co2-per-kwh much", "'much' is not a valid number"),
        ("--reclaimable --prometheus localhost:1 --co2-per-kwh 1", "--reclaimable needs"),
        ("--reclaimable --prometheus localhost:1 --format csv", "--reclaimable needs"),
    ],
)
def test_options_without_sense_are_one_line(tmp_path: Path, flags: str, message: str) -> None:
    done = run(tmp_path, "report", *flags.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
