"""Driver metrics of each GPU: identity, holders, memory, power, clocks, errors, link."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_bottleneck_exporter.driver import readings
from gpu_bottleneck_exporter.sampling.collector import (
    Table,
    collector,
    counter,
    gauge,
    latest,
    seconds_by,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.schedule import CADENCE


def used_bytes(gpu: GpuSnapshot) -> int | None:
    """Device memory in use; by its processes where the kernel shares it."""
    memory = _memory(gpu)
    if not (memory.of_machine or gpu.identity.coherent):
        return memory.used_bytes
    reading = gpu.reading(readings.Processes)
    if reading is None or reading.others_hidden:
        return None
    used = [process.used_bytes for process in reading.processes]
    return None if None in used else sum(filter(None, used))


def _memory(gpu: GpuSnapshot) -> readings.Memory:
    return gpu.reading(readings.Memory) or readings.Memory()


def _identity(known: tuple[readings.Identity, readings.System]) -> dict[tuple[str, ...], float]:
    who, system = known
    texts = who.name, who.architecture, who.pci_bus_id, system.driver_version, system.cuda_version
    return {tuple(text or "" for text in (*texts, who.mig_profile, who.parent_uuid)): 1.0}


_INFO: Table[tuple[readings.Identity, readings.System]] = {
    gauge(
        "gpu_info{name, architecture, pci_bus_id, driver_version, cuda_version, mig_profile, "
        "parent_uuid}",
        "Constant 1; identifies the GPU or MIG instance. cuda_version is the highest that the "
        "driver supports. Unknown labels are omitted.",
    ): _identity
}

_PROCESSES: Table[readings.Processes] = {
    gauge(
        "gpu_processes",
        "Processes that hold a context on the GPU (compute, graphics, MPS), except those of a "
        "desktop and MPS's daemons. Absent if processes in other PID namespaces may be hidden. "
        "Read every 10 s.",
    ): lambda held: held.count
}

_POWER: Table[readings.Power] = {
    gauge(
        "gpu_power_watts",
        "Power drawn, in watts: mean of the last second; instantaneous on GA100, older boards, and "
        "where the driver averages none.",
    ): lambda power: power.watts,
    gauge("gpu_power_limit_watts", "Power limit in force, in watts."): lambda power: (
        power.limit_watts
    ),
    gauge(
        "gpu_power_default_limit_watts", "Default power limit of the board, in watts."
    ): lambda power: power.default_limit_watts,
    gauge(
        "gpu_module_power_watts",
        "Power drawn by the module of GPU and CPU, in watts (superchips such as GH200 and GB200).",
    ): lambda power: power.module_watts,
    gauge(
        "gpu_module_power_limit_watts",
        "Power limit of the module in force, in watts: it throttles the GPU while the CPU draws "
        "much.",
    ): lambda power: power.module_limit_watts,
    counter(
        "gpu_energy_joules_total",
        "Energy since the driver was loaded, in joules (Volta and later).",
    ): lambda power: power.energy_joules,
}

_THERMAL: Table[readings.Thermal] = {
    gauge(
        "gpu_temperature_celsius{sensor}",
        "Temperature in degrees Celsius, of gpu, memory and, from driver 615 on, hottest: the "
        "hottest part of the die.",
    ): lambda thermal: thermal.sensors,
    gauge(
        "gpu_temperature_limit_celsius{limit}",
        "Temperature in degrees Celsius at which the GPU leaves its operating range (the driver "
        "slows it down), the hardware slows it down, or it shuts down; memory_max_operating: at "
        "which its memory is too hot. Absent where the driver states a margin only (H100).",
    ): lambda thermal: thermal.limits,
    gauge(
        "gpu_temperature_margin_celsius",
        "Degrees Celsius from the hottest sensor to its slowdown threshold; negative above it. "
        "Absent where the driver states limits only.",
    ): lambda thermal: thermal.margin,
}

_CLOCKS: Table[readings.Clocks] = {
    gauge("gpu_clock_hertz{clock}", "Current clock, in hertz. Falls when idle."): lambda clocks: (
        clocks.now
    ),
    gauge("gpu_clock_max_hertz{clock}", "Highest clock of the model, in hertz."): lambda clocks: (
        clocks.maximum
    ),
}

_THROTTLE: Table[readings.Throttle] = {
    counter(
        "gpu_throttle_seconds_total{reason}",
        "Seconds for which the reason held the clocks down, since the driver was loaded. Before "
        "driver 575, and from 580.66 to 580.81, sw_thermal covers all thermal throttling. Any load "
        "that boosts is power-capped at times: alert on the rate.",
    ): lambda throttle: seconds_by(throttle.spent_ns),
    gauge(
        "gpu_throttle_active{reason}",
        "Whether the reason holds the clocks down right now, 0 or 1. hw_slowdown: the hardware "
        "does, and the driver does not state why (a peak of current; old boards). board_limit and "
        "reliability need driver 615 or later.",
    ): lambda throttle: throttle.active,
}

_MEMORY: Table[GpuSnapshot] = {
    gauge(
        "gpu_memory_total_bytes",
        "Device memory installed, in bytes; the machine's if the GPU has no memory of its own "
        "(GB10).",
    ): lambda gpu: _memory(gpu).total_bytes,
    gauge(
        "gpu_memory_used_bytes",
        "Device memory that processes have allocated, in bytes, with frameworks' caches and, "
        "where gpu_memory_reserved_bytes is absent, reserved memory. On GB10, GH200 and GB200, "
        "where the kernel also uses it, this is the sum over the processes.",
    ): used_bytes,
    gauge(
        "gpu_unlisted_processes",
        "Processes that keep memory although the driver lists none, such as children that "
        "outlived a main: they have the GPU's device open, and more memory is in use than "
        "monitoring tools take. 0 if none was found, as without CAP_SYS_PTRACE. Absent "
        "otherwise, and under MIG. The log has their pids.",
    ): lambda gpu: None if gpu.unlisted_pids is None else len(gpu.unlisted_pids),
    gauge(
        "gpu_memory_reserved_bytes", "Device memory that the driver keeps for itself, in bytes."
    ): lambda gpu: _memory(gpu).reserved_bytes,
}

_XID: Table[Mapping[int, int]] = {
    counter(
        "gpu_xid_errors_total{xid}",
        "XID events since the exporter started, by code: 13, 31, 43, 45, 68 and 109 come from the "
        "application, others from hardware or driver. A code's series first appears at 1: an alert "
        "must also catch new series.",
    ): lambda errors: {str(code): count for code, count in sorted(errors.items())}
}

_HEALTH: Table[readings.Health] = {
    counter(
        "gpu_ecc_errors_total{kind}",
        "ECC errors since the driver was loaded (volatile). Absent with ECC off.",
    ): lambda health: health.ecc_errors,
    gauge(
        "gpu_remapped_rows{kind}",
        "Memory rows remapped since the GPU was made, by the kind of error (Ampere and later). "
        "Absent under MIG.",
    ): lambda health: health.remapped_rows,
    gauge(
        "gpu_row_remap_pending",
        "Whether a row remapping is pending until the next GPU reset, 0 or 1. Absent under MIG.",
    ): lambda health: health.remap_pending,
    gauge(
        "gpu_row_remap_failed",
        "Whether a row remapping failed, 0 or 1: replace the GPU. Absent under MIG.",
    ): lambda health: health.remap_failed,
}

_CONDITION: Table[readings.Condition] = {
    gauge(
        "gpu_recovery_action{action}",
        "Constant 1; what the driver asks for: none, gpu_reset, node_reboot, system_reboot, "
        "bus_reset, drain_p2p, drain_and_reset, recover_imex_domain, or action_N for a number "
        "without a name. Read every 30 s, as is all of this collector.",
    ): lambda gpu: None if gpu.recovery_action is None else {gpu.recovery_action: 1.0},
    gauge(
        "gpu_fabric_state{state}",
        "Constant 1; registration with the NVLink fabric: not_started, in_progress, completed or "
        "failed. CUDA starts only after it is completed. Absent where there is no fabric.",
    ): lambda gpu: None if gpu.fabric_state is None else {gpu.fabric_state: 1.0},
    gauge("gpu_nvlink_active_links", "NVLinks that are up. Absent without NVLinks."): lambda gpu: (
        gpu.nvlinks_active
    ),
    counter(
        "gpu_nvlink_errors_total{kind}",
        "NVLink errors over all links since the driver was loaded: replay (sent again) and "
        "recovery (the link was trained again). Absent where the driver does not count them.",
    ): lambda gpu: gpu.nvlink_errors,
    gauge(
        "gpu_repair_pending",
        "Whether a repair of memory or SMs is pending until the next GPU reset, 0 or 1.",
    ): lambda gpu: gpu.repair_pending,
    gauge(
        "gpu_memory_unrepairable",
        "Whether the GPU has memory that cannot be repaired, 0 or 1: replace the GPU.",
    ): lambda gpu: gpu.memory_unrepairable,
}

_LINK: Table[readings.Link] = {
    counter(
        "gpu_pcie_replays_total", "PCIe packets sent again since the driver was loaded."
    ): lambda link: link.replays,
    gauge(
        "gpu_pcie_link_generation",
        "PCIe generation at which the link runs. Falls when the GPU is idle. Absent, as are the "
        "three below, on NVLink-C2C (GB10).",
    ): lambda link: link.generation,
    gauge(
        "gpu_pcie_link_generation_max", "Highest PCIe generation that GPU and slot both support."
    ): lambda link: link.generation_max,
    gauge("gpu_pcie_link_width", "PCIe lanes in use."): lambda link: link.width,
    gauge(
        "gpu_pcie_link_width_max",
        "Most PCIe lanes that the chip supports. No reference for gpu_pcie_link_width: boards "
        "(T4), laptops and virtual machines may connect fewer.",
    ): lambda link: link.width_max,
}

HOLDERS = (
    collector("info", _INFO, lambda gpu: (gpu.identity, gpu.system)),
    collector(
        "processes",
        _PROCESSES,
        latest(readings.Processes),
        lambda one: one.processes(),
        CADENCE.slow_ns,
    ),
)
"""Collectors of the GPU's identity and processes, which come first."""
_ON_DEMAND = (
    collector("power", _POWER, latest(readings.Power), lambda one: one.power(), CADENCE.gauge_ns),
    collector(
        "thermal",
        _THERMAL,
        latest(readings.Thermal),
        lambda one: one.thermal(),
        CADENCE.gauge_ns,
    ),
    collector(
        "clocks",
        _CLOCKS,
        latest(readings.Clocks),
        lambda one: one.clocks(),
        CADENCE.gauge_ns,
    ),
    collector(
        "throttle",
        _THROTTLE,
        latest(readings.Throttle),
        lambda one: one.throttle(),
        CADENCE.gauge_ns,
    ),
)
"""Collectors whose readings only scrapes use, or add up in the driver."""
OTHERS = (
    *(replace(one, on_demand=True) for one in _ON_DEMAND),
    collector("memory", _MEMORY, lambda gpu: gpu, lambda one: one.memory(), CADENCE.gauge_ns),
    collector("xid", _XID, lambda gpu: gpu.errors),
    collector(
        "health", _HEALTH, latest(readings.Health), lambda one: one.health(), CADENCE.slow_ns
    ),
    collector(
        "condition",
        _CONDITION,
        latest(readings.Condition),
        lambda one: one.condition(),
        CADENCE.rare_ns,
    ),
    collector("link", _LINK, latest(readings.Link), lambda one: one.link(), CADENCE.slow_ns),
)
"""Collectors in the order of exposition."""
