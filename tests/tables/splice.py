"""Sections of documents that programs write, between `<!-- NAME: begin -->` and its end.

Long tables of measurements are CSV files instead, beside the document that sums them up.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path


def section(text: str, name: str) -> str:
    """Text between the markers of that name.

    Raises ValueError when `text` does not have both, each once and in order.
    """
    return _parted(text, name)[1]


def renewed(text: str, sections: Mapping[str, str]) -> str:
    """`text` with new `sections`, by name, where it has markers of them. Raises as `section`."""
    for name, content in sections.items():
        if f"<!-- {name}: " in text:
            before, _, after = _parted(text, name)
            text = f"{before}{content}\n{after}"
    return text


def put(path: Path, sections: Mapping[str, str]) -> None:
    """The same in a file, which must have at least one of them. Raises SystemExit."""
    text = path.read_text(encoding="utf-8")
    if not any(f"<!-- {name}: " in text for name in sections):
        raise SystemExit(f"{path} has none of the markers of {', '.join(sections)}")
    try:
        path.write_text(renewed(text, sections), encoding="utf-8")
    except ValueError as error:
        raise SystemExit(f"{path}: {error}") from None


def write_csv(path: Path, table: str) -> None:
    """Write a Markdown table without `|` in its cells to a CSV file."""
    head, _, *rows = (line.strip("|").split("|") for line in table.splitlines())
    with open(path, "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerows([cell.strip() for cell in row] for row in (head, *rows))


def read_csv(path: Path) -> list[list[str]]:
    """The rows of a CSV file, without the headings."""
    with open(path, encoding="utf-8", newline="") as file:
        return [*csv.reader(file)][1:]


def _parted(text: str, name: str) -> tuple[str, str, str]:
    """Text before and between the markers, and after, with the markers themselves."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, _, rest = text.partition(begin)
    inside, _, after = rest.partition(end)
    if (text.count(begin), rest.count(end), before.count(end)) != (1, 1, 0):
        raise ValueError(f"{begin.strip()} and {end} are needed once, each on its line, in order")
    return before + begin, inside, end + after
