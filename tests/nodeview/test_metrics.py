from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.exposition import Exposition
from gpu_bottleneck_exporter.nodeview.metrics import reading_of
from gpu_bottleneck_exporter.nodeview.model import HostReading, Key, Reading
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
    assert gpu.trouble == ("a row remap waits for a reset",)
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
    assert parsed.gpus == reading(mixed_state()).gpus
    assert parsed.host == reading(mixed_state()).host


def test_without_a_driver() -> None:
    found = reading(NO_DRIVER)
    assert found.gpus == ()
    assert found.host == HostReading()
    assert found.version is not None


def test_metrics_of_others_are_passed_over() -> None:
    families = text_string_to_metric_families("# TYPE node_load1 gauge\nnode_load1 1\n")
    assert reading_of(families) == Reading()
