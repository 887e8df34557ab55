"""The node document, built from states of the sampler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_bottleneck_exporter.driver.about import DOWN
from gpu_bottleneck_exporter.driver.readings import Link, UnitActivity, Utilization
from gpu_bottleneck_exporter.feeders.serving import Serving
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.model import Host, Key
from gpu_bottleneck_exporter.nodeview.wire import document, node_in
from gpu_bottleneck_exporter.prescription.model import Refusal
from gpu_bottleneck_exporter.remedies import MEANINGS, REMEDIES
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot, TenantTotals
from gpu_bottleneck_exporter.sampling.sampler import SamplerState
from support import states
from support.logged import logged
from support.nodes import node, sharing, waiting
from support.rows import rows
from support.states import (
    ampere,
    by_type,
    feeding,
    hopper,
    lost,
    mixed_state,
    sampled_totals,
    snapshot,
    state,
)


def test_keepers_of_the_memory_of_a_gpu_without_processes() -> None:
    *_, result, _ = node(mixed_state()).gpus
    assert result.trouble is not None
    assert (
        "memory is in use, but the driver lists no process; open in: 4714, 4715" in result.trouble
    )


def test_a_gpu_with_all_readings() -> None:
    gpu = node(mixed_state()).gpus[0]
    assert gpu.key == Key("0", states.HOPPER.uuid)
    assert (gpu.up, gpu.name, gpu.mig_profile) == (True, states.HOPPER.name, None)
    assert (gpu.power_watts, gpu.power_limit_watts) == (412.5, 700)
    assert (gpu.temperature_celsius, gpu.slowdown_temperature_celsius) == (61, 87)
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (52 * 2**30, 80 * 2**30)
    assert (gpu.sm_clock_hertz, gpu.sm_clock_max_hertz) == (1.755e9, 1.98e9)
    assert gpu.throttle_reasons == ("power_cap",)
    assert gpu.trouble == ("a row remapping is pending: reset the GPU",)
    assert (gpu.processes, gpu.workers, gpu.holder_pids) == (2, 8, (4711, 4712))
    assert [owner["workload_pod"] for owner in gpu.owners or ()] == ["train-7f9c"]
    assert gpu.observed_seconds == pytest.approx(119 / 5)
    assert (gpu.busy_ratio, gpu.sm_active_ratio) == pytest.approx((73.78 / 119, 60 / 119))
    assert sum(gpu.parts.values()) == pytest.approx(1)


def linked(width: int, most: int, name: str | None = "Tesla T4") -> GpuSnapshot:
    """A GPU whose chip has 16 lanes."""
    gpu = snapshot(replace(states.AMPERE, name=name), sampled_totals(), {})
    link = Link(width=width, width_max=16)
    return replace(gpu, readings=by_type(link, Utilization()), most_lanes=most)


LINKS: dict[str, tuple[list[GpuSnapshot], str | None]] = {
    "a board that connects half": ([linked(8, 8), linked(8, 8), linked(16, 16, "L4")], None),
    "a fall": ([linked(8, 16)], "PCIe link runs on 8 of 16 lanes"),
    "a peer": (
        [linked(4, 4), linked(8, 8)],
        "PCIe link runs on 4 lanes, but on 8 for another Tesla T4 here",
    ),
    "without names": ([linked(4, 4, None), linked(8, 8, None)], None),
}


@rows("gpus, trouble", LINKS)
def test_a_link_is_judged_by_its_own_past_and_by_its_peers(
    gpus: list[GpuSnapshot], trouble: str | None
) -> None:
    shown = node(state(*gpus)).gpus
    assert shown[0].trouble == (None if trouble is None else (trouble,))
    assert not any(gpu.trouble for gpu in shown[1:])


def test_a_gpu_without_busy_time_reports_so_unless_nothing_was_read() -> None:
    gpu = hopper()
    sources = (Utilization, UnitActivity)
    blind = {kind: value for kind, value in gpu.readings.items() if kind not in sources}
    text = "the driver reports no busy time; `check` names the reason"
    assert text in (node(state(replace(gpu, readings=blind))).gpus[0].trouble or ())
    for readings in (gpu.readings, {}, {**blind, UnitActivity: UnitActivity(1)}):
        shown = node(state(replace(gpu, readings=readings))).gpus[0]
        assert text not in (shown.trouble or ())
    off = replace(state(replace(gpu, readings=blind)), collectors=frozenset({"power"}))
    assert text not in (node(off).gpus[0].trouble or ())


def test_a_mig_instance_has_the_index_of_its_parent() -> None:
    instance = node(mixed_state()).gpus[2]
    assert (instance.gpu, instance.mig_profile) == ("1", "3g.40gb")
    assert (instance.power_watts, instance.temperature_celsius) == (None, None)


def test_a_gpu_that_is_down_shows_only_its_identity_and_remedy() -> None:
    gone = node(mixed_state()).gpus[4]
    values = {"gpu", "uuid", "name", "up", "remedy", "runbook", "xid_errors"}
    assert {name for name in gone.__slots__ if getattr(gone, name) not in (None, ())} == values
    assert gone.xid_errors == {"79": 1, "48": 2}
    assert (gone.remedy, gone.runbook) == (DOWN, "GpuTelemetryLost")


def test_the_cause_has_its_remedy_and_evidence() -> None:
    gpu = waiting({"worker_cpu": 60_000_000_000}, busy_ns=40_000_000_000)
    values = (("worker_cpu", "decodes PNG"), ("network", "asked 10.0.0.7"))
    outcome = replace(feeding(), evidence=values)
    result = node(state(replace(gpu, feeding=outcome))).gpus[0]
    assert (result.verdict, result.cause) == ("worker_cpu", "worker_cpu")
    assert (result.meaning, result.remedy) == (MEANINGS["worker_cpu"], REMEDIES["worker_cpu"])
    assert result.runbook == "GpuStarved-cpu_preprocessing_bound"
    assert result.evidence == ("decodes PNG",), "the other contradicts the verdict"


@pytest.mark.parametrize("busy_ns", [40 * 10**9, 95 * 10**9])
def test_a_server_shows_its_clients_for_any_verdict(busy_ns: int) -> None:
    serving = Serving((8000,), 12, 0, 3, 4.2, complete=True)
    gpu = waiting({"requests": 5 * 10**9}, busy_ns=busy_ns)
    shown = node(state(replace(gpu, feeding=replace(feeding(), serving=serving))))
    assert shown.gpus[0].serving == serving
    assert node_in(dumps(document(shown)).encode()) == shown
    assert node(state(gpu)).gpus[0].serving is None


def test_a_gpu_that_is_kept_busy_has_the_last_change_only() -> None:
    result = node(state(waiting({"peer": 5_000_000_000}, busy_ns=95_000_000_000))).gpus[0]
    assert (result.verdict, result.cause, result.remedy) == ("busy", None, None)
    assert (result.prescription, result.prescription_refused) == (None, None)
    assert result.last_change is not None


def test_the_node() -> None:
    result = node(state(lost()))
    assert (result.host.cpus, result.host.memory_total_bytes) == (64, 512 * 2**30)
    assert (result.host.shm_size_bytes, result.host.shm_used_bytes) == (256 * 2**30, 2**30)
    assert result.host.pressure_ratios == {"cpu": 0, "io": 0, "memory": 0}
    assert (result.window_seconds, result.simulated) == (60, False)
    assert result.signals["psi_cgroup"] is False
    assert "cgroup v2" in result.signal_remedies["psi_cgroup"]
    assert [c.collector for c in result.collectors if not c.success] == ["power"]
    assert [c.error for c in result.collectors if c.error] == ["nvmlDeviceGetPowerUsage: 999"]


def test_a_prescription_or_why_there_is_none_and_the_last_change() -> None:
    gpu, parent = node(mixed_state()).gpus[:2]
    assert (gpu.prescription, gpu.prescription_refused) == (states.PRESCRIBED, None)
    assert (parent.prescription, parent.prescription_refused) == (None, Refusal("mixed"))
    assert gpu.last_change == states.SCORED


def test_without_a_driver() -> None:
    result = node(states.NO_DRIVER)
    assert (result.gpus, result.host) == ((), Host())
    assert result.driver_remedy is None, "it is being found out"


def without(collector: str, now: SamplerState) -> SamplerState:
    return replace(now, collectors=states.NAMES - {collector})


def test_values_hidden_in_metrics_are_hidden_here() -> None:
    gpu = node(without("stall", state(hopper()))).gpus[0]
    assert (gpu.stall_ratios, gpu.cause) == ({}, None)
    assert node(without("feeders", state(hopper()))).gpus[0].workers is None
    assert node(state(ampere())).gpus[0].evidence is None


def test_a_gpu_of_which_a_part_makes_no_sense_costs_itself_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = hopper()
    bad = replace(good, identity=replace(good.identity, uuid="GPU-odd"), errors={10**5000: 1})
    huge = replace(good, identity=replace(good.identity, uuid="GPU-huge"), errors={1: 10**5000})
    result = node(state(bad, huge, good))
    odd, large, whole = node_in(dumps(document(result)).encode()).gpus
    assert (odd.name, odd.up, odd.verdict) == (good.identity.name, True, None)
    assert large.power_watts == whole.power_watts is not None
    assert [line for line in logged(caplog) if "uuid=GPU-odd" in line]


def test_a_shared_gpu_has_the_time_of_each_tenant() -> None:
    shown = node(state(sharing(), hopper()))
    result = shown.gpus[0].tenants or ()
    assert [part.tenant for part in result] == ["pod-1c", "pod-3b", "others", "unattributed"]
    assert [part.busy_seconds for part in result] == pytest.approx([50, 30, 10, 1])
    shares = [part.busy_share_ratio for part in result]
    assert shares == pytest.approx([50 / 91, 30 / 91, 10 / 91, 1 / 91])
    assert [part.stall_seconds for part in result] == [
        *({"requests": 4}, {"worker_cpu": pytest.approx(4)}, {"asleep": 1}, {})
    ]
    pods = [(part.owner or {}).get("workload_pod") for part in result]
    assert pods == ["infer-0", "train-7f9c", None, None]
    assert shown.gpus[1].tenants is None
    assert node_in(dumps(document(shown)).encode()) == shown


def test_equal_tenants_are_in_the_order_of_their_names() -> None:
    gpu = sharing()
    totals = {"b": TenantTotals(5_001_000_000), "a": TenantTotals(5_000_000_000)}
    result = node(state(replace(gpu, totals=replace(gpu.totals, tenants=totals)))).gpus[0]
    assert [(part.tenant, part.owner) for part in result.tenants or ()] == [
        *(("a", None), ("b", None))
    ]


@pytest.mark.parametrize(
    ("busy", "shares"),
    [
        ({"a": 0, "b": 0}, [None, None]),
        ({"a": 0, "b": 0, "unattributed": 9}, [None, None, 1]),
        ({"a": 0, "b": 6, "unattributed": 2}, [0.75, 0, 0.25]),
    ],
    ids=["idle", "by an older driver", "in part"],
)
def test_an_unknown_share_is_none(busy: dict[str, int], shares: list[float | None]) -> None:
    gpu, idle_ns = sharing(), {"asleep": 10**9}
    totals = {name: TenantTotals(value * 10**9, idle_ns) for name, value in busy.items()}
    result = node(state(replace(gpu, totals=replace(gpu.totals, tenants=totals)))).gpus[0]
    assert [part.busy_share_ratio for part in result.tenants or ()] == shares


def test_without_their_collector_there_are_no_tenants() -> None:
    now = state(sharing())
    without = replace(now, collectors=now.collectors - {"tenants"})
    assert node(now).gpus[0].tenants
    assert node(without).gpus[0].tenants is None
