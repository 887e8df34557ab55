"""The keys of the chart's values.yaml, which is their documentation: a comment stands above each.

A comment covers the keys below its own, too; a key without one is a section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from gpu_bottleneck_exporter.errors import ExporterError

VALUES = Path(__file__).parents[2] / "helm/gpu-bottleneck-exporter/values.yaml"
_COMMENT = re.compile(r" *# *\S")


def keys(text: str) -> list[str]:
    """The dotted keys of a values file that have a comment.

    Raises ExporterError for a key that nothing is said about.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_keys(root, text.splitlines(), ""))


def _keys(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[str]:
    for name, below in node.value:
        key = f"{prefix}{name.value}"
        above = name.start_mark.line - 1
        if above >= 0 and _COMMENT.match(lines[above]):
            yield key
        elif isinstance(below, yaml.MappingNode) and below.value:
            yield from _keys(below, lines, f"{key}.")
        else:
            raise ExporterError(f"values.yaml says nothing about {key}")
