"""Intervals of the sampler, as they stand in the exporter's README."""

from __future__ import annotations

from gpu_bottleneck_exporter.collectors.device import OTHERS
from gpu_bottleneck_exporter.schedule import CADENCE, SMALL_GROUP
from gpu_bottleneck_exporter.settings import Settings


def table() -> str:
    """Readings with their usual interval, and the one while a GPU's waits are steady."""
    gauges = max(other.every_ns for other in OTHERS if other.on_demand) / 1e9
    passes, counters = CADENCE.pass_seconds, CADENCE.counter_seconds
    many = CADENCE.sparse_factor * passes
    slow, rare = CADENCE.slow_ns / 1e9, CADENCE.rare_ns / 1e9
    tick, steady = Settings().interval_seconds, CADENCE.window_ns / 1e9
    lazy = CADENCE.reading_intervals * gauges + steady / 2
    rows = (
        (
            "the GPU: a tick",
            f"{tick:g} s (`--sampling.interval`)",
            f"{steady:g} s, and at a scrape; {tick:g} s without a holder",
        ),
        (
            "its power, temperature, clocks and throttling",
            f"{gauges:g} to {lazy:g} s, at the rate of scrapes, and when holders change",
            "",
        ),
        (
            "state of mains",
            f"{passes:g} s; {many:g} s for more than {SMALL_GROUP} mains",
            f"up to {counters:g} s apart, see below",
        ),
        ("state of two workers, in turn", f"{many:g} s", "as for mains"),
        (
            "counters of mains and workers",
            f"{counters:g} s",
            f"{steady:g} s, and at a scrape",
        ),
        (
            "holders of the GPU",
            f"{slow:g} s, and at the next tick after unused memory is allocated or a holder ends",
            "",
        ),
        (
            "their descendants",
            f"{slow:g} s, and at once when a main's child starts or a worker ends",
            f"{rare:g} s",
        ),
        (
            "owner of a process, its control group, its limits",
            f"{slow:g} s for the first {2 * slow:g} s, then {rare:g} s",
            "",
        ),
    )
    lines = [f"| {read} | {usual} | {slower} |" for read, usual, slower in rows]
    return "\n".join(["| Read | Every | While steady |", "|---|---|---|", *lines])
