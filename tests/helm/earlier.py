"""Default values of earlier charts, which `helm upgrade --reuse-values` renders new templates with.

`python -m helm.earlier` writes the defaults that the first of them lacks, and those that are
empty, into the chart.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from helm.commented import VALUES
from support.rows import beside

NEWER = VALUES.parent / "files/newer.yaml"
"""Defaults of values that a release may lack, or that are null: the templates fill them in."""
Values = Mapping[str, Any]


def releases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and default values of each earlier chart, the first one first."""
    values: dict[str, Any] = {}
    for name, changes in beside(__file__, "earlier.yml").items():
        values = merged(values, changes)
        yield name, values
    for path in sorted(Path(__file__).parent.glob("values-*.yaml")):
        yield path.stem.removeprefix("values-"), beside(__file__, path.name)


def merged(below: Values, above: Values) -> dict[str, Any]:
    """Values over others, as Helm merges them."""
    result = copy.deepcopy(dict(below))
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def added(values: Values, earlier: Values) -> dict[str, Any]:
    """The part of `values` whose keys `earlier` lacks."""
    result = {}
    for key, value in values.items():
        if key not in earlier:
            result[key] = value
        elif isinstance(value, Mapping) and isinstance(earlier[key], Mapping) and earlier[key]:
            result |= {key: part} if (part := added(value, earlier[key])) else {}
    return result


def empty(values: Values) -> dict[str, Any]:
    """The part of `values` that is empty: to templates, as good as a value that is not there."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            result |= {key: part} if (part := empty(value)) else {}
        elif value in ("", [], {}):
            result[key] = value
    return result


def newer() -> dict[str, Any]:
    """Default values that the first release lacks."""
    _, first = next(releases())
    return added(yaml.safe_load(VALUES.read_text(encoding="utf-8")), first)


def filled() -> dict[str, Any]:
    """Default values that templates fill in where there are none."""
    return merged(empty(yaml.safe_load(VALUES.read_text(encoding="utf-8"))), newer())


if __name__ == "__main__":
    NEWER.write_text(
        "# Written by `make generate`: defaults that the first release lacks, or that are empty.\n"
        + yaml.safe_dump(filled(), sort_keys=False),
        encoding="utf-8",
    )
