"""The table of the chart's values in its README, written from the comments in values.yaml.

A key with a comment is a row, and so are not the keys below it; a key without one is a section,
whose keys are rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpu_bottleneck_exporter.errors import ExporterError

VALUES = Path(__file__).parents[2] / "helm/gpu-bottleneck-exporter/values.yaml"
_LONGEST = 60
_COMMENT = re.compile(r"^ *#(?: (.*))?$")


@dataclass(frozen=True, slots=True)
class Value:
    """A row: the dotted key, its default, and the first paragraph of its comment."""

    key: str
    default: Any
    said: str


def values(text: str) -> list[Value]:
    """The rows of a values file.

    Raises ExporterError for a key that nothing is said about.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_rows(root, yaml.safe_load(text), text.splitlines(), ""))


def table(text: str) -> str:
    """The values of the file as a Markdown table."""
    head = ["| Key | Default | What it does |", "|---|---|---|"]
    rows = (f"| `{v.key}` | {_cell(v.default)} | {_escaped(v.said)} |" for v in values(text))
    return "\n".join([*head, *rows])


def _rows(
    node: yaml.MappingNode, defaults: dict[str, Any], lines: list[str], prefix: str
) -> Iterator[Value]:
    for name, below in node.value:
        key = f"{prefix}{name.value}"
        if said := _comment(lines, name.start_mark.line):
            yield Value(key, defaults[name.value], said)
        elif isinstance(below, yaml.MappingNode) and below.value:
            yield from _rows(below, defaults[name.value], lines, f"{key}.")
        else:
            raise ExporterError(f"values.yaml says nothing about {key}")


def _comment(lines: list[str], line: int) -> str:
    """The first paragraph of the comment right above a line."""
    first = line
    while first and _COMMENT.match(lines[first - 1]):
        first -= 1
    paragraph: list[str] = []
    for text in lines[first:line]:
        match = _COMMENT.match(text)
        if match is None or not match[1]:
            break
        paragraph.append(match[1].strip())
    return " ".join(paragraph)


def _cell(default: Any) -> str:  # noqa: ANN401 - whatever YAML holds
    text = json.dumps(default, ensure_ascii=False)
    return f"`{text}`" if len(text) <= _LONGEST else "see values.yaml"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
