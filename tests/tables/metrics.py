"""The table of all metrics in the documentation, written from what the collectors declare."""

from __future__ import annotations

from dataclasses import replace

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.exposition import own
from gpu_bottleneck_exporter.exposition.render import GPU_LABELS
from gpu_bottleneck_exporter.sampling.collector import Family


def families() -> list[Family]:
    """All metric families in the order of the exposition, each with all of its labels."""
    values: list[Family] = []
    for collector in (own.UP, *ALL):
        families = collector.families
        values += families if collector.of_machine else map(_of_gpu, families)
    return [*values, *own.EXPORTER]


def _of_gpu(family: Family) -> Family:
    return replace(family, labels=(*GPU_LABELS, *family.labels))


def table() -> str:
    """The families as Markdown lists, each below the collector that has them."""
    parts = [(collector.name, collector.families) for collector in (own.UP, *ALL)]
    parts.append(("the exporter itself", tuple(own.EXPORTER)))
    return "\n\n".join(
        "\n".join([f"### {name}", "", *map(_line, families_of)]) for name, families_of in parts
    )


def _line(family: Family) -> str:
    labels = f"{{{', '.join(family.labels)}}}" if family.labels else ""
    return f"- `{family.name}{labels}`: {family.help}"
