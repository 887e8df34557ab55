"""The table of all metrics in the documentation, written from what the collectors declare.

`python -m gpu_bottleneck_exporter.collectors.reference README.md` puts it in place.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.collectors import ALL, exporter
from gpu_bottleneck_exporter.collectors.base import Family
from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.exposition import GPU_LABELS

BEGIN = "<!-- metrics: begin -->"
END = "<!-- metrics: end -->"


def families() -> list[Family]:
    """All metric families in the order of the exposition, each with all of its labels."""
    found = [_of_gpu(family) for family in exporter.GPU_FAMILIES]
    for collector in ALL:
        per_gpu = collector.of_machine is None
        found += map(_of_gpu, collector.families) if per_gpu else collector.families
    return [*found, *exporter.FAMILIES]


def _of_gpu(family: Family) -> Family:
    return replace(family, labels=(*GPU_LABELS, *family.labels))


def table() -> str:
    """The families as a Markdown table."""
    head = ["| Metric | Type | Labels | What it says |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_row, families())])


def with_table(text: str) -> str:
    """`text` with the table between the markers.

    Raises ExporterError when it does not have both markers, each once and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        raise ExporterError(f"it needs the lines {BEGIN} and {END}, each once and in this order")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Rewrite the table in the file named; the exit status."""
    if len(arguments) != 1:
        return _fail("name the file that holds the table")
    path = Path(arguments[0])
    try:
        path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
    except (ExporterError, OSError, UnicodeDecodeError) as error:
        return _fail(f"{path}: {error}")
    return 0


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    said = family.help.replace("|", "\\|")
    return f"| `{family.name}` | {family.kind} | {labels} | {said} |"


def _fail(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
