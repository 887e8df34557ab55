"""Collectors and their metric families."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from gpu_bottleneck_exporter.accounting.bucket import K
from gpu_bottleneck_exporter.accounting.tick import R
from gpu_bottleneck_exporter.driver.protocol import Device
from gpu_bottleneck_exporter.driver.readings import Reading
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family; common labels are not in `labels`."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()


def _family(kind: Kind, series: str, about: str) -> Family:
    """A family by name and labels: `gpu_clock_hertz{clock}`."""
    name, _, labels = series.rstrip("}").partition("{")
    return Family(kind, name, about, tuple(labels.split(", ")) if labels else ())


counter, gauge = partial(_family, "counter"), partial(_family, "gauge")
histogram = partial(_family, "histogram")


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram sample: cumulative counts by upper bound, without +Inf."""

    buckets: tuple[tuple[float, int], ...]
    sum: float


Series = tuple[tuple[str, ...], float | Histogram]
"""Label values in order, and the value."""

S = TypeVar("S")
_By = Mapping[K, float | None]
Values = float | Histogram | _By[str] | _By[tuple[str, str]] | _By[tuple[str, ...]] | None
"""Value, or values by label or tuple of labels; None: unknown."""
Table = Mapping[Family, Callable[[S], Values]]
"""Families, each with a function that extracts its values."""


@dataclass(frozen=True, slots=True)
class Collector:
    """A reading of each GPU and the families made from it."""

    name: str
    families: tuple[Family, ...]
    source: Callable[[GpuSnapshot], object]
    """Part of a snapshot that the families show."""
    series: Callable[..., list[list[Series]]]
    """Series of each family for that part."""
    read: Callable[[Device], Reading | None] | None = None
    every_ns: int = 0
    """Interval; 0: every tick."""
    of_machine: bool = False
    """Whether GPU labels are omitted."""
    on: bool = True
    """Whether enabled by default."""
    on_demand: bool = False
    """Whether scrapes refresh older readings; rarely read otherwise."""


def collector(
    name: str,
    table: Table[S],
    source: Callable[[GpuSnapshot], S | None],
    read: Callable[[Device], Reading | None] | None = None,
    every_ns: int = 0,
) -> Collector:
    """A collector that applies `table` to `source` of each GPU."""
    return Collector(name, tuple(table), source, partial(series, table), read, every_ns)


def latest(kind: type[R]) -> Callable[[GpuSnapshot], R | None]:
    """The source of readings of type `kind`."""
    return lambda gpu: gpu.reading(kind)


def series(table: Table[S], source: S | None) -> list[list[Series]]:
    """Series of each family of `table`; none for unknown values."""
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
    """Seconds in `nanoseconds`; None if unknown."""
    return None if nanoseconds is None else nanoseconds / 1e9


def seconds_by(nanoseconds: Mapping[K, int]) -> dict[K, float]:
    """Seconds in each of `nanoseconds`."""
    return {key: value / 1e9 for key, value in nanoseconds.items()}
