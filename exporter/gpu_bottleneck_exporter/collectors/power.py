"""Power and energy, temperatures, clocks, and what holds these down."""

from gpu_bottleneck_exporter.driver.readings import Clocks, Power, Thermal, Throttle
from gpu_bottleneck_exporter.sampling.collector import (
    UNHURRIEDLY,
    Table,
    collector,
    counter,
    gauge,
    latest,
    seconds_by,
)

_POWER: Table[Power] = {
    gauge(
        "gpu_power_watts",
        "Power drawn, in watts: mean of the last second if the driver has it (field 185), else "
        "nvmlDeviceGetPowerUsage, which is instantaneous on GA100 and older.",
    ): lambda power: power.watts,
    gauge(
        "gpu_power_limit_watts", "Power limit in force, in watts (nvmlDeviceGetEnforcedPowerLimit)."
    ): lambda power: power.limit_watts,
    gauge(
        "gpu_power_default_limit_watts",
        "Default power limit of the board, in watts (nvmlDeviceGetPowerManagementDefaultLimit). A "
        "limit in force below it has been lowered.",
    ): lambda power: power.default_limit_watts,
    counter(
        "gpu_energy_joules_total",
        "Energy since the driver was loaded, in joules (nvmlDeviceGetTotalEnergyConsumption, Volta "
        "and later).",
    ): lambda power: power.energy_joules,
}

_THERMAL: Table[Thermal] = {
    gauge(
        "gpu_temperature_celsius",
        "Temperature in degrees Celsius (nvmlDeviceGetTemperatureV; memory: field 82).",
        ("sensor",),
    ): lambda thermal: thermal.sensors,
    gauge(
        "gpu_temperature_limit_celsius",
        "GPU temperature at which it slows down, shuts down, or leaves its operating range, in "
        "degrees Celsius (nvmlDeviceGetTemperatureThreshold; from Ada on derived once from the "
        "temperature and the driver's T.Limit margins, so it may be a degree off).",
        ("limit",),
    ): lambda thermal: thermal.limits,
}

_CLOCKS: Table[Clocks] = {
    gauge(
        "gpu_clock_hertz",
        "Current clock, in hertz (nvmlDeviceGetClockInfo). Falls when idle.",
        ("clock",),
    ): lambda clocks: clocks.now,
    gauge(
        "gpu_clock_max_hertz",
        "Highest clock of the model, in hertz (nvmlDeviceGetMaxClockInfo).",
        ("clock",),
    ): lambda clocks: clocks.maximum,
}

_THROTTLE: Table[Throttle] = {
    counter(
        "gpu_throttle_seconds_total",
        "Seconds for which the reason held the clocks down, since the driver was loaded (field "
        "values 74-80, 251-253 or 269-271 by driver version, else nvmlDeviceGetViolationStatus). "
        "Before driver 575, and from 580.66 to 580.81, sw_thermal covers all thermal throttling. "
        "Any load that boosts is power-capped at times: alert on the rate.",
        ("reason",),
    ): lambda throttle: seconds_by(throttle.spent_ns),
    gauge(
        "gpu_throttle_active",
        "Whether the reason holds the clocks down right now, 0 or 1 "
        "(nvmlDeviceGetCurrentClocksEventReasons). board_limit and reliability need driver 615 or "
        "later.",
        ("reason",),
    ): lambda throttle: throttle.active,
}

COLLECTORS = (
    collector("power", _POWER, latest(Power), lambda device: device.power(), UNHURRIEDLY),
    collector("thermal", _THERMAL, latest(Thermal), lambda device: device.thermal(), UNHURRIEDLY),
    collector("clocks", _CLOCKS, latest(Clocks), lambda device: device.clocks(), UNHURRIEDLY),
    collector(
        "throttle", _THROTTLE, latest(Throttle), lambda device: device.throttle(), UNHURRIEDLY
    ),
)
