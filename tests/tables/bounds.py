"""Bounds on jobs, clients, drivers and disks, as they stand in SECURITY.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import gpu_bottleneck_exporter

_PACKAGE = Path(gpu_bottleneck_exporter.__file__).parent
_PREFIXES = "MAX_", "_MAX_"
_NOT_SERVED = "dashboards", "demo"
_BINARY_PREFIXES = ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)


def table() -> str:
    """Every constant named `MAX_...`, with its module and its value."""
    lines = [f"| `{module}` | `{name}` | {value} |" for module, name, value in sorted(bounds())]
    return "\n".join(["| Module | Bound | Value |", "|---|---|---|", *lines])


def bounds() -> Iterator[tuple[str, str, str]]:
    """Module, name and value of each."""
    for path in _PACKAGE.rglob("*.py"):
        parts = path.relative_to(_PACKAGE).with_suffix("").parts
        if parts[0] in _NOT_SERVED:
            continue
        for name in _names(path):
            module = import_module(".".join((_PACKAGE.name, *parts)))
            value = getattr(module, name)
            if isinstance(value, (int, float)):
                yield ".".join(parts), name.lstrip("_"), _with_unit(name, value)


def _names(path: Path) -> Iterator[str]:
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and node.id.startswith(_PREFIXES):
                    yield node.id


def _with_unit(name: str, value: float) -> str:
    unit = name.rpartition("_")[2]
    if unit == "BYTES":
        for prefix, size in _BINARY_PREFIXES:
            if value >= size and value % size == 0:
                return f"{value // size:.0f} {prefix}"
    scales = {"NS": 1e9, "MS": 1e3, "SECONDS": 1.0}
    return f"{value / scales[unit]:g} s" if unit in scales else f"{value:.10g}"
