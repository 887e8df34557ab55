"""The keys of the chart's values.yaml, which is their documentation: a comment stands above each.

A comment covers the keys below its own, too; a key without one is a section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from gpu_bottleneck_exporter.errors import ExporterError

VALUES = Path(__file__).parents[2] / "helm/gpu-bottleneck-exporter/values.yaml"
_COMMENT = re.compile(r" *# ?(.*)")


@dataclass(frozen=True)
class Value:
    """A value with a comment of its own: its dotted key, default, and first paragraph."""

    key: str
    default: object
    comment: str


def values(text: str) -> list[Value]:
    """The values of a values file that have a comment.

    Raises ExporterError for a key that nothing is said about.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_values(root, yaml.safe_load(text), text.splitlines(), ""))


def _values(
    node: yaml.MappingNode, defaults: dict[str, Any], lines: list[str], prefix: str
) -> Iterator[Value]:
    for name, below in node.value:
        key, default = f"{prefix}{name.value}", defaults[name.value]
        if comment := _comment(lines[: name.start_mark.line]):
            yield Value(key, default, comment)
        elif isinstance(below, yaml.MappingNode) and below.value:
            yield from _values(below, default, lines, f"{key}.")
        else:
            raise ExporterError(f"values.yaml says nothing about {key}")


def _comment(lines: list[str]) -> str:
    """The first paragraph of the comment at the end of `lines`; empty without one."""
    block = [*takewhile(bool, map(_COMMENT.fullmatch, reversed(lines)))]
    texts = [match[1] for match in reversed(block) if match]
    return " ".join(takewhile(bool, texts))
