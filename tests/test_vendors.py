"""NVIDIA and its library are named by their driver alone: all else works for any vendor's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import gpu_bottleneck_exporter

ROOT = Path(gpu_bottleneck_exporter.__file__).parent
VENDORS = re.compile("nvidia|nvml|nvrm", re.IGNORECASE)
EXCEPTIONS = {
    "driver/nvml/": "the driver",
    "driver/open.py": "which vendors there are",
    "demo/virtual/": "the virtual board imitates NVML",
    "collectors/": "a metric's help text names its source",
}


def words(path: Path) -> Iterator[str]:
    """Names and strings of a module, without what is written for its readers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if id(node) not in prose:
            yield from (value for _, value in ast.iter_fields(node) if isinstance(value, str))


@cache
def naming() -> dict[str, list[str]]:
    """Names of vendors, by module."""
    fields = {
        f"{path.relative_to(ROOT)}": [word for word in words(path) if VENDORS.search(word)]
        for path in sorted(ROOT.rglob("*.py"))
    }
    return {module: those for module, those in fields.items() if those}


def test_only_its_driver_names_a_vendor() -> None:
    assert {m: those for m, those in naming().items() if not m.startswith((*EXCEPTIONS,))} == {}


def test_collectors_name_it_in_help_texts_only() -> None:
    values = [w for m, those in naming().items() if m.startswith("collectors/") for w in those]
    assert all(" " in word for word in values)
