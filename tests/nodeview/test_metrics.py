from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.nodeview.metrics import reading_of
from gpu_bottleneck_exporter.nodeview.model import GpuReading, HostReading, Key, Reading
from gpu_bottleneck_exporter.nodeview.outlook import Change, LastChange
from support.nodes import reading
from support.states import HOPPER, NO_DRIVER, FixedSampler, lost, mixed_state, state


def test_a_gpu_that_tells_everything() -> None:
    gpu = reading(mixed_state()).gpus[0]
    assert gpu.key == Key("0", HOPPER.uuid)
    assert (gpu.up, gpu.name, gpu.mig_profile) == (True, HOPPER.name, None)
    assert (gpu.power_watts, gpu.power_limit_watts) == (412.5, 700)
    assert (gpu.temperature, gpu.slowdown_temperature) == (61, 87)
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (52 * 2**30, 80 * 2**30)
    assert (gpu.sm_clock, gpu.sm_clock_max) == (1.755e9, 1.98e9)
    assert gpu.held_down_by == ("power_cap",)
    assert gpu.trouble == ("a row remapping is pending: reset the GPU",)
    assert (gpu.processes, gpu.workers) == (2, 8)
    assert [owner["workload_pod"] for owner in gpu.owners] == ["train-7f9c"]
    assert gpu.counters is not None
    assert (gpu.counters.observed, gpu.counters.busy) == (119, 73.78)
    assert sum(gpu.counters.stalls.values()) + gpu.counters.busy == gpu.counters.observed
    assert gpu.counters.sm_active == 60


def test_a_mig_instance_has_the_index_of_its_parent() -> None:
    instance = reading(mixed_state()).gpus[2]
    assert (instance.key.gpu, instance.mig_profile) == ("1", "3g.40gb")
    assert (instance.power_watts, instance.temperature) == (None, None)


def test_a_gpu_that_is_down_shows_nothing_but_who_it_is() -> None:
    gone = reading(mixed_state()).gpus[4]
    assert (gone.up, gone.counters, gone.power_watts, gone.owners) == (False, None, None, ())
    assert gone.xids == {"79": 1, "48": 2}


def test_the_node() -> None:
    found = reading(state(lost()))
    assert (found.host.cpus, found.host.memory_total_bytes) == (64, 512 * 2**30)
    assert found.host.pressure_seconds == {"cpu": 0.25, "io": 0.75, "memory": 1.25}
    assert found.signals["psi_cgroup"] is False
    assert [c.name for c in found.collectors if not c.success] == ["power"]
    assert [c.error for c in found.collectors if c.error] == ["nvmlDeviceGetPowerUsage: 999"]


def test_another_exporters_text_gives_the_same_reading() -> None:
    """What `top --url` sees is what the page of that exporter shows."""
    sampler = FixedSampler(mixed_state())
    text = Exposition(sampler, ALL).render()[0].decode()
    parsed = reading_of(text_string_to_metric_families(text))
    assert [told(gpu) for gpu in parsed.gpus] == [told(gpu) for gpu in reading(mixed_state()).gpus]
    assert parsed.host == reading(mixed_state()).host


def scraped(knob: str = "num_workers", **values: str) -> GpuReading:
    """One GPU with these `gpu_prescription_...` of a knob."""
    labels = f'gpu="0",uuid="u",knob="{knob}"'
    samples = [f"gpu_prescription_{name}{{{labels}}} {value}" for name, value in values.items()]
    text = "\n".join(['gpu_up{gpu="0",uuid="u"} 1', *samples, ""])
    return reading_of(text_string_to_metric_families(text)).gpus[0]


def told(gpu: GpuReading) -> GpuReading:
    """`gpu` with no more of its prescription and last change than metrics say."""
    change, last = gpu.prescription, gpu.last_change
    if change is not None:
        shares = (change.predicted, change.low, change.high)
        change = Change(change.knob, change.current, change.value, *shares, change.at_most)
    if last is not None:
        last = LastChange(last.knob, last.predicted, round(last.outcome, 9))
    return replace(gpu, prescription=change, last_change=last)


def test_this_machine_tells_all_of_a_prescription_and_of_the_last_change() -> None:
    gpu, parent = reading(mixed_state()).gpus[:2]
    assert gpu.prescription == Change(
        knob="num_workers",
        current=2,
        value=6,
        predicted=0.93,
        low=0.88,
        high=0.95,
        at_most=False,
        cause="worker_cpu",
        busy=0.44,
        cores=4,
        free_cores=7,
        memory_bytes=2.1 * 2**30,
        free_bytes=40 * 2**30,
        then="host_code",
    )
    assert gpu.last_change == LastChange("num_workers", 0.46, 0.44, 1, 2, 0.42, 0.5)
    assert (gpu.refused, parent.prescription, parent.refused) == (None, None, "mixed")


def test_metrics_do_not_say_what_a_prescription_takes() -> None:
    known = {"value": "4", "current_value": "0.3", "busy_ratio": "0.64", "busy_low_ratio": "0.5"}
    assert scraped(**known).prescription == Change("num_workers", 0.3, 4, 0.64, low=0.5)
    for value, at_most in (("0", False), ("1", True)):
        told = scraped(**known, upper_bound=value).prescription
        assert told == Change("num_workers", 0.3, 4, 0.64, low=0.5, at_most=at_most)
    assert scraped(value="4", busy_ratio="0.64").prescription is None
    assert scraped(scored_ratio="0.9", error_ratio="-0.25").last_change == LastChange(
        "num_workers", 0.9, 0.65
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("value", "NaN"), ("value", "-1"), ("current_value", "+Inf"), ("busy_ratio", "2")],
)
def test_a_prescription_that_makes_no_sense_is_none(name: str, value: str) -> None:
    known = {"value": "4", "current_value": "2", "busy_ratio": "0.6"}
    assert scraped(**known).prescription is not None
    assert scraped(**{**known, name: value}).prescription is None
    assert scraped("\x1b[2J", **known).prescription is None
    assert scraped(scored_ratio="0.9", error_ratio="NaN").last_change is None
    assert scraped(scored_ratio="0.9", error_ratio="1").last_change == LastChange(
        "num_workers", 0.9, 1.0
    )


def test_a_refusal_counts_while_it_is_1_and_its_reason_is_known() -> None:
    def refused(reason: str, value: int) -> str | None:
        labels = f'gpu="0",uuid="u",reason="{reason}"'
        text = f"gpu_prescription_refused{{{labels}}} {value}\n"
        return reading_of(text_string_to_metric_families(text)).gpus[0].refused

    assert [refused("mixed", 1), refused("mixed", 0), refused("<b>", 1)] == ["mixed", None, None]


def test_without_a_driver() -> None:
    found = reading(NO_DRIVER)
    assert found.gpus == ()
    assert found.host == HostReading()
    assert found.version is not None


def test_metrics_of_others_are_passed_over() -> None:
    families = text_string_to_metric_families("# TYPE node_load1 gauge\nnode_load1 1\n")
    assert reading_of(families) == Reading()
