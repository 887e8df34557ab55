"""The list of which tests import which folder of the package."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

_TESTS = Path(__file__).parents[1]
_MOST = 5
"""Folders of tests for each of modules."""
_PACKAGE = _TESTS.parent / "exporter/gpu_bottleneck_exporter"


def table() -> str:
    """Markdown, by folder: the tests with most imports first, and modules that none imports."""
    by: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sorted(_TESTS.rglob("test_*.py")):
        by_file = {*imported(path)}
        for module in by_file:
            by[module][path.relative_to(_TESTS).parts[0]] += 1
    folders: dict[str, list[str]] = defaultdict(list)
    for path in sorted(_PACKAGE.rglob("*.py")):
        name = path.relative_to(_PACKAGE).with_suffix("").as_posix()
        if path.stat().st_size and path.name not in {"__init__.py", "__main__.py"}:
            folders[name.rpartition("/")[0] or "."].append(name)
    return "\n".join(_lines(folders, by))


def _lines(folders: dict[str, list[str]], by: dict[str, Counter[str]]) -> Iterator[str]:
    for folder, modules in folders.items():
        counts = sum((by[module] for module in modules), Counter[str]())
        testing = sorted(counts, key=lambda test: (-counts[test], test))[:_MOST]
        alone = [module.rpartition("/")[2] for module in modules if not by[module]]
        result, others = (", ".join(f"`{item}`" for item in many) for many in (testing, alone))
        others = others and f"; only through others: {others}"
        yield f"- `{folder}/`: {result}{others}".replace("`./`", "top level")


def imported(path: Path) -> Iterator[str]:
    """Modules of the package, by path, that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, module = node.module.partition(".")
            if package == _PACKAGE.name:
                result = module.replace(".", "/")
                yield result
                yield from (f"{result}/{name.name}".lstrip("/") for name in node.names)
