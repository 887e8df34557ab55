"""The status page: what an exporter's `/` shows, without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from gpu_bottleneck_exporter.driver.readings import Memory, Power, Thermal
from gpu_bottleneck_exporter.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampler import State

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8886; }
td.number { font-variant-numeric: tabular-nums; text-align: right; }
.notice { border-left: .3rem solid #c60; padding: .2rem .8rem; }
meter { width: 8rem; }
""".strip()

_COLUMNS = ("GPU", "Model", "State", "Busy", "Power", "Temperature", "Memory")


def status_page(
    *, version: str, status: str, state: State, down: Mapping[int, str], telemetry_path: str
) -> str:
    """The page as HTML; every text from outside is escaped."""
    simulated = (
        '<p class="notice">These GPUs are <strong>simulated</strong>; the processes that feed '
        "them are real.</p>"
        if state.simulated
        else ""
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="5">
<title>GPU bottleneck exporter</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>GPU bottleneck exporter</h1>
<p>Version {escape(version)}: {escape(status)}.</p>
{simulated}
<p><a href="{escape(telemetry_path)}">Metrics</a> · <a href="/-/healthy">Health</a> ·
<a href="/-/ready">Readiness</a></p>
{_table(state, down)}
</body>
</html>
"""


def _table(state: State, down: Mapping[int, str]) -> str:
    if not state.gpus:
        return "<p>No GPU to show.</p>"
    head = "".join(f"<th scope='col'>{column}</th>" for column in _COLUMNS)
    rows = "\n".join(_row(gpu, down.get(gpu.identity.index)) for gpu in state.gpus)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def _row(gpu: GpuSnapshot, down: str | None) -> str:
    who = gpu.identity
    name = f"{who.index}" if who.parent_uuid is None else f"{who.index} · MIG {who.mig_profile}"
    state = "up" if gpu.up else f"down: {down or 'unknown'}"
    first = f"<th scope='row' title='{escape(who.uuid)}'>{escape(name)}</th>"
    texts = f"<td>{escape(who.name or 'unknown')}</td><td>{escape(state)}</td>"
    return f"<tr>{first}{texts}{_busy(gpu)}{''.join(_numbers(gpu))}</tr>"


def _busy(gpu: GpuSnapshot) -> str:
    ratio = gpu.totals.last_busy_ratio
    if ratio is None:
        return "<td>not known</td>"
    return f"<td><meter value='{ratio:.3f}' aria-label='busy'>{ratio:.0%}</meter> {ratio:.0%}</td>"


def _numbers(gpu: GpuSnapshot) -> Iterator[str]:
    power, thermal, memory = gpu.reading(Power), gpu.reading(Thermal), gpu.reading(Memory)
    watts = power.watts if power else None
    yield _number(watts, "{:.0f} W")
    yield _number(thermal.sensors.get("gpu") if thermal else None, "{:.0f} °C")
    used = memory.used_bytes if memory else None
    total = memory.total_bytes if memory else None
    if used is None or total is None:
        yield _number(None, "")
    else:
        yield _number(used / 2**30, f"{{:.1f}} of {total / 2**30:.1f} GiB")


def _number(value: float | None, layout: str) -> str:
    text = "not known" if value is None else layout.format(value)
    return f"<td class='number'>{text}</td>"
