"""Impossible values of the driver: seen in the field, or possible of a broken one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest

from gpu_bottleneck_exporter.driver import readings as kinds
from gpu_bottleneck_exporter.driver.plausible import plausible
from gpu_bottleneck_exporter.driver.readings import (
    Process,
    Reading,
    Thermal,
    UnitActivity,
    Utilization,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuLedger
from support.rows import rows
from support.states import HOPPER

SECOND = 1_000_000_000


def clean(reading: Reading) -> tuple[Reading, list[str]]:
    """The rest of `reading`, and the names of dropped fields."""
    dropped: list[str] = []
    return plausible(reading, lambda name, _: dropped.append(name)), dropped


def use(*samples: tuple[int, int, int]) -> Reading:
    return kinds.ProcessUse(tuple(kinds.ProcessSample(*sample) for sample in samples))


BYTES = {"pcie_receive": math.nan}
OVER_A_SECOND: Callable[..., Reading] = partial(UnitActivity, SECOND)
MEMORY: Callable[..., Reading] = kinds.Memory
RATIOS = ("graphics", "sm_active", "sm_occupancy", "dram_active")


@rows(
    "reading, left, dropped",
    {
        "busy": (Utilization(gpu_percent=808334905), Utilization(), "gpu_percent"),
        "memory": (Utilization(memory_percent=2**32 - 1), Utilization(), "memory_percent"),
        "power": (kinds.Power(3689342859416.54, 700.0), kinds.Power(None, 700.0), "watts"),
        "heat": (Thermal({"gpu": 644245923, "memory": 60}), Thermal({"memory": 60}), "sensors gpu"),
        "a limit": (Thermal(limits={"slowdown": 2**32}), Thermal(), "limits slowdown"),
        "a margin": (Thermal(margin=644245923), Thermal(), "margin"),
        **{
            f"{name} of {value}": (OVER_A_SECOND(**{name: value}), UnitActivity(SECOND), name)
            for name in RATIOS
            for value in (1.2, -0.2)
        },
        **{
            f"{name} beyond a document": (MEMORY(**{name: 10**16}), kinds.Memory(), name)
            for name in ("total_bytes", "used_bytes", "reserved_bytes")
        },
        "power of a module": (kinds.Power(module_watts=1e9), kinds.Power(), "module_watts"),
        "video": (kinds.Video({}, {"encoder": 2**32 - 1}), kinds.Video({}), "percents encoder"),
        "a mean": (UnitActivity(SECOND, dram_active=math.nan), UnitActivity(SECOND), "dram_active"),
        "a pipe": (
            UnitActivity(SECOND, pipes={"fp16": math.nan}),
            UnitActivity(SECOND),
            "pipes fp16",
        ),
        "bytes": (
            UnitActivity(SECOND, traffic_bytes=BYTES),
            UnitActivity(SECOND),
            "traffic_bytes pcie_receive",
        ),
        "bytes of 64 bits": (kinds.Memory(80, 2**64 - 1), kinds.Memory(80), "used_bytes"),
        "energy": (kinds.Power(energy_joules=1e19), kinds.Power(), "energy_joules"),
        "lanes": (kinds.Link(width=2**32 - 1), kinds.Link(), "width"),
        "no lanes": (kinds.Link(width=0), kinds.Link(), "width"),
        "lanes of a slot": (kinds.Link(width_max=2**32 - 1), kinds.Link(), "width_max"),
        "digits": (kinds.Clocks({"sm": 10**400}), kinds.Clocks(), "now sm"),
        "an infinity": (kinds.Power(limit_watts=math.inf), kinds.Power(), "limit_watts"),
        "one below": (kinds.Power(limit_watts=-math.inf), kinds.Power(), "limit_watts"),
        "bytes of a process": (
            kinds.Processes((Process(7, 10**16),)),
            kinds.Processes((Process(7),)),
            "used_bytes",
        ),
        "use of no process": (use((1, 0, 5), (1, 7, 5)), use((1, 7, 5)), "samples"),
        "use of a pid": (use((1, 2**22 + 1, 5)), use(), "samples"),
        "use of a dead process": (use((1, 7, 101), (2, 8, 2**32 - 1)), use(), "samples"),
        "pid 0": (
            kinds.Processes((Process(0), Process(7))),
            kinds.Processes((Process(7),), others_hidden=True),
            "pid",
        ),
        "a pid": (
            kinds.Processes((Process(2**32 - 1), Process(7))),
            kinds.Processes((Process(7),), others_hidden=True),
            "pid",
        ),
    },
)
def test_an_impossible_value_is_dropped(reading: Reading, left: Reading, dropped: str) -> None:
    assert clean(reading) == (left, [dropped])


@rows(
    "reading, left, dropped",
    {
        "busy": (Utilization(gpu_percent=-1), Utilization(), "gpu_percent"),
        "watts": (kinds.Power(-0.1), kinds.Power(), "watts"),
        "energy": (kinds.Power(energy_joules=-1.0), kinds.Power(), "energy_joules"),
        "bytes": (kinds.Memory(used_bytes=-1), kinds.Memory(), "used_bytes"),
        "a limit": (Thermal(limits={"slowdown": -1}), Thermal(), "limits slowdown"),
        "heat": (Thermal({"gpu": -(2**31)}), Thermal(), "sensors gpu"),
        "a margin": (Thermal(margin=-(2**31)), Thermal(), "margin"),
        "traffic": (
            UnitActivity(SECOND, traffic_bytes={"pcie_receive": -1.0}),
            UnitActivity(SECOND),
            "traffic_bytes pcie_receive",
        ),
    },
)
def test_no_sum_goes_backwards_and_garbage_may_be_negative(
    reading: Reading, left: Reading, dropped: str
) -> None:
    assert clean(reading) == (left, [dropped])


def test_an_impossible_sample_of_a_ring_is_counted_where_it_is_left_out() -> None:
    ring = (kinds.RingSample(1, 50), kinds.RingSample(2, None))
    reading = Utilization(ring, ring)
    assert clean(reading) == (reading, ["samples", "samples"])


@pytest.mark.parametrize(
    "reading",
    [
        Utilization(gpu_percent=100, memory_percent=0),
        kinds.Power(0.0, 1400.0, 1e9, 1200.0),
        Thermal({"gpu": -5, "memory": 105}, {"shutdown": 110}),
        kinds.Clocks({"sm": 0}, {"sm": 3e9}),
        kinds.Throttle({"power_cap": 0}),
        kinds.Memory(80, 80, 0),
        kinds.Health({"corrected": 10**6}, {"uncorrected": 3}, remap_pending=True),
        kinds.Link(0, 6, 7, 16, 16),
        kinds.Processes((Process(4194304, 0),)),
        use((1, 4194304, 100), (1, 1, 0)),
    ],
)
def test_a_possible_value_passes(reading: Reading) -> None:
    left, dropped = clean(reading)
    assert left is reading
    assert dropped == []


def test_means_may_overshoot_a_little() -> None:
    result = clean(UnitActivity(SECOND, 1.02, -0.001, pipes={"fp16": 1.01}))
    assert result == (UnitActivity(SECOND, 1.0, 0.0, pipes={"fp16": 1.0}), [])


def test_sums_that_nothing_is_added_to_are_absent_until_they_go_on() -> None:
    ledger = GpuLedger(HOPPER, kinds.System(None, None), SECOND)
    stamp = 0
    for second in range(1, 6):
        stamp += 10**6
        ring = (kinds.RingSample(stamp, 50),)
        ledger.add(second * SECOND, 5 * SECOND, Utilization(ring, ring))
        ledger.add(
            second * SECOND, 5 * SECOND, UnitActivity(SECOND, sm_active=0.5, dram_active=0.5)
        )
    totals = ledger.snapshot(5 * SECOND).totals
    assert totals.observed_ns == 4 * SECOND
    for second in range(6, 20):  # the ring is silent, single readings fail, a metric is gone
        ledger.add(second * SECOND, 5 * SECOND, Utilization((), ()))
        ledger.add(second * SECOND, 5 * SECOND, UnitActivity(SECOND, sm_active=0.5))
    gone = ledger.snapshot(20 * SECOND).totals
    assert (gone.observed_ns, gone.memory_busy_ns, gone.last_busy_ratio) == (None, None, None)
    assert gone.window_counts == ()
    assert list(gone.active_ns) == ["sm"]
    ring = (kinds.RingSample(stamp + 15 * 10**6, 50),)
    ledger.add(20 * SECOND, 5 * SECOND, Utilization(ring, ring))
    back = ledger.snapshot(20 * SECOND).totals
    assert back.observed_ns is not None
    assert back.observed_ns > totals.observed_ns
    assert back.observed_ns + back.unobserved_ns == 19 * SECOND
