"""The arrows between the parts of the package point one way."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path
from pkgutil import resolve_name

import pytest

import gpu_bottleneck_exporter

ROOT = Path(gpu_bottleneck_exporter.__file__).parent
PACKAGE = ROOT.name


def modules() -> dict[str, Path]:
    fields = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        fields[".".join((PACKAGE, *parts)).removesuffix(".__init__")] = path
    return fields


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Also those in functions, and those for types only."""
    values = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for name in node.names:
                module = f"{node.module}.{name.name}"
                values.add(module if module in known else str(node.module))
    return values


def part(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.").partition(".")[0]


def test_there_is_no_circle_of_imports_not_even_between_folders() -> None:
    packages = modules()
    arrows = {module: imports(path, packages) - {module} for module, path in packages.items()}
    del arrows[PACKAGE]  # it loads its public names when they are used
    folders: dict[str, set[str]] = {}
    for module, others in arrows.items():
        folders.setdefault(part(module), set()).update(map(part, others))
    for folder, others in folders.items():
        others.discard(folder)
    assert list(TopologicalSorter(arrows).static_order())
    assert list(TopologicalSorter(folders).static_order())


def test_modules_that_read_the_host_could_be_a_separate_package() -> None:
    packages = modules()
    host = {module for module in packages if part(module) == "host"}
    assert host
    assert not {item for module in host for item in imports(packages[module], packages)} - host


def test_modules_that_read_stacks_need_only_the_host() -> None:
    packages = modules()
    arrows = {module: imports(path, packages) for module, path in packages.items()}
    pending, reached = [f"{PACKAGE}.stacktraces.reader"], set[str]()
    while pending:
        reached.add(module := pending.pop())
        pending += arrows[module] - reached
    assert {part(module) for module in reached} == {"errors", "host", "stacktraces"}


@pytest.mark.parametrize(
    ("room", "other"), [("nodeview", "exposition"), ("flags", "collectors"), ("report", "web")]
)
def test_rooms_that_do_without_another(room: str, other: str) -> None:
    packages = modules()
    paths = [path for module, path in packages.items() if part(module) == room]
    assert paths
    assert other not in {part(item) for path in paths for item in imports(path, packages)}


def test_attributes_of_other_objects_are_not_set() -> None:
    """Attributes of an object are set by arguments or methods: `self.a.b = c` hides the writer.

    Structures of C and connections of sqlite3 have nothing but attributes.
    """
    foreign = {
        "self.record.",
        "self._count.value",
        "self._since.value",
        "self._file.text_factory",
    }
    met = set[str]()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                text = ast.unparse(node)
                through = text.startswith("self.") and isinstance(node.value, ast.Attribute)
                message = f"{path}:{node.lineno}: {text}"
                assert not through or text.startswith(tuple(foreign)), message
                met |= {item for item in foreign if through and text.startswith(item)}
    assert met == foreign


def test_the_type_any_is_rare() -> None:
    """Exceptions for click, the socket of `http.client` and fields named at run time."""
    lines = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id == "Any"
    }
    assert len(lines) <= 10, sorted(lines)


def test_no_test_is_imported_by_another() -> None:
    of_a_test = re.compile(r"^ *from (\S*\.)?test_\S* import ", re.MULTILINE)
    for path in Path(__file__).parent.rglob("*.py"):
        assert not of_a_test.search(path.read_text(encoding="utf-8")), path


def test_modules_named_in_the_readme_exist() -> None:
    text = (Path(__file__).parent.parent / "exporter/README.md").read_text()
    section = text.partition("### An idle second in the code\n")[2].partition("\n### ")[0]
    names = re.findall(r"`(\w+\.[\w.]+)`", section)
    assert len(names) > 9
    for name in names:
        resolve_name(f"{PACKAGE}.{name}")
