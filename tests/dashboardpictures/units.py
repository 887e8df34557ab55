"""Numbers as Grafana writes them, in the units that the dashboards use."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNITS = (
    *("none", "short", "string", "percentunit", "bytes", "Bps", "cps"),
    *("watt", "celsius", "s", "dateTimeFromNow"),
)
_PLAIN = {"none": (1, ""), "percentunit": (100, "%"), "celsius": (1, " °C")}
BINARY = ("bytes",)
"""Those whose axis has round steps in powers of two."""
_BYTES = (" B", " KiB", " MiB", " GiB", " TiB", " PiB")
_SHORT = ("", " K", " Mil", " Bil", " Tri")
_SMALL = (" n", " µ", " m")
_SI = (" ", " k", " M", " G", " T", " P")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def text(value: float, unit: str, decimals: int | None = None, *, now: float = 0) -> str:
    """`value` with its unit; `now` is the Unix time that ages are counted from."""
    if not math.isfinite(value):
        return f"{value}"
    if unit == "dateTimeFromNow":
        return _ago(now - value / 1000)
    if unit == "s":
        return _duration(value, decimals)
    if unit in _PLAIN:
        factor, name = _PLAIN[unit]
        return f"{_fixed(value * factor, decimals)}{name}"
    return _scaled(value, unit, decimals)


def _scaled(value: float, unit: str, decimals: int | None) -> str:
    if unit == "bytes":
        return _by(value, 1024, _BYTES, decimals)
    if unit == "short":
        return _by(value, 1000, _SHORT, decimals)
    if unit == "cps":
        return _by(value, 1000, [f"{one} c/s" for one in _SHORT], decimals)
    name = {"Bps": "B/s", "watt": "W"}[unit]
    if value and abs(value) < 1:
        # Grafana's SI prefixes go below one, too.
        return _by(value * 1e9, 1000, [f"{one}{name}" for one in (*_SMALL, " ")], decimals)
    return _by(value, 1000, [f"{one}{name}" for one in _SI], decimals)


def _by(value: float, factor: int, names: Sequence[str], decimals: int | None) -> str:
    power = 0
    while abs(value) >= factor and power < len(names) - 1:
        value, power = value / factor, power + 1
    return f"{_fixed(value, decimals)}{names[power]}"


def _duration(seconds: float, decimals: int | None) -> str:
    for below, factor, name in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1, 1e3, "ms")):
        if seconds and abs(seconds) < below:
            return f"{_fixed(seconds * factor, decimals)} {name}"
    for below, factor, name in (
        (_MINUTE, 1, "s"),
        (_HOUR, _MINUTE, "mins"),
        (_DAY, _HOUR, "hours"),
    ):
        if abs(seconds) < below:
            return f"{_fixed(seconds / factor, decimals)} {name}"
    return f"{_fixed(seconds / _DAY, decimals)} days"


def _ago(seconds: float) -> str:
    for below, size, one, many in (
        (45, 1, "a few seconds", "a few seconds"),
        (2700, 60, "a minute", "minutes"),
        (79200, 3600, "an hour", "hours"),
    ):
        if seconds < below:
            count = round(seconds / size)
            return f"{one} ago" if count <= 1 or one == many else f"{count} {many} ago"
    days = round(seconds / 86400)
    return "a day ago" if days <= 1 else f"{days} days ago"


def _fixed(value: float, decimals: int | None) -> str:
    """With so many decimals; by default three digits that count."""
    if decimals is None:
        decimals = 0 if value == int(value) else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"
