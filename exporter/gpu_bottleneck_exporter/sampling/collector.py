"""The parts of a collector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from gpu_bottleneck_exporter.driver.protocol import Device
from gpu_bottleneck_exporter.driver.readings import Reading
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.schedule import OFTEN_NS, STEADY_NS

Kind = Literal["counter", "gauge", "histogram"]

UNHURRIEDLY = STEADY_NS / 1e9
"""Seconds between readings of gauges, and of counters that the driver itself keeps."""
SLOWLY = OFTEN_NS / 1e9
"""Seconds between readings that are costly for the driver or hardly ever change."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family; `labels` come in addition to the common ones."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()


def _family(kind: Kind, series: str, about: str) -> Family:
    """`series`: the name and, in braces, the labels: `gpu_clock_hertz{clock}`."""
    name, _, labels = series.rstrip("}").partition("{")
    return Family(kind, name, about, tuple(labels.split(", ")) if labels else ())


counter, gauge = partial(_family, "counter"), partial(_family, "gauge")
histogram = partial(_family, "histogram")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Value of a histogram sample: cumulative counts by upper bound, without +Inf, and the sum."""

    buckets: tuple[tuple[float, int], ...]
    sum: float


Series = tuple[tuple[str, ...], float | Histogram]
"""One series of a family: label values in the order of the family's labels, and its value."""

K = TypeVar("K")
S = TypeVar("S")
_By = Mapping[K, float | None]
Values = float | Histogram | _By[str] | _By[tuple[str, str]] | _By[tuple[str, ...]] | None
"""The value of a family without labels, or values by label or tuple of labels. None: unknown."""
Table = Mapping[Family, Callable[[S], Values]]
"""Families, and what each of them shows of a GPU, a reading or a machine."""


@dataclass(frozen=True, slots=True)
class Collector:
    """One subject: what is read from each GPU, and the families made from it."""

    name: str
    families: tuple[Family, ...]
    source: Callable[[GpuSnapshot], object]
    """The part of a GPU that the families show; None: nothing."""
    series: Callable[..., list[list[Series]]]
    """The series of each family for such a part, the same for equal ones."""
    read: Callable[[Device], Reading | None] | None = None
    """None: the collector uses the readings of others only."""
    every_seconds: float = 0.0
    """Between two readings; 0: every tick."""
    of_machine: bool = False
    """Whether the families show the host, without GPU labels."""
    on: bool = True
    """Whether it is enabled by default."""
    on_demand: bool = False
    """Whether it is read as often as scrapes ask, at most `every_seconds` apart, else seldom."""


def collector(
    name: str,
    table: Table[S],
    source: Callable[[GpuSnapshot], S | None],
    read: Callable[[Device], Reading | None] | None = None,
    every_seconds: float = 0.0,
) -> Collector:
    """A collector of GPUs that shows `table` of what `source` takes from each; None: nothing."""
    return Collector(name, tuple(table), source, partial(series, table), read, every_seconds)


def latest(kind: type[S]) -> Callable[[GpuSnapshot], S | None]:
    """Source of a GPU's last reading of type `kind`."""
    return lambda gpu: gpu.reading(kind)


def series(table: Table[S], source: S | None) -> list[list[Series]]:
    """The series of each family of `table`, without those of unknown values."""
    if source is None:
        return [[] for _ in table]
    return [_series(values_of(source)) for values_of in table.values()]


def _series(values: Values) -> list[Series]:
    if values is None:
        return []
    if isinstance(values, Histogram):
        return [((), values)]
    if isinstance(values, (float, int)):
        return [((), float(values))]
    return [
        ((label,) if isinstance(label, str) else label, float(value))
        for label, value in values.items()
        if value is not None
    ]


def seconds(nanoseconds: int | None) -> float | None:
    """`nanoseconds` in seconds; None if unknown."""
    return None if nanoseconds is None else nanoseconds / 1e9


def seconds_by(nanoseconds: Mapping[K, int]) -> dict[K, float]:
    """Each of `nanoseconds` in seconds."""
    return {key: value / 1e9 for key, value in nanoseconds.items()}
