"""Change the package in one place after the other, and see whether the tests of its folder notice.

    PYTHONPATH=tests python -m mutants [--count 300] [--seed 1] [FOLDER ...]

prints the changes that they let pass, and how many of each folder they caught. mutmut runs tests
in a copy of the project, and these read the project. Of cosmic-ray's mutants, three in four put
another operator in place of one, mostly in types, and none drops a statement; it runs one command
for all.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "exporter/gpu_bottleneck_exporter"
PURE = "--no-processes"
TESTS = {
    "accounting": (PURE, "tests/accounting"),
    "feeders": (PURE, "tests/feeders"),
    "host": (PURE, "tests/host"),
    "sampling": (PURE, "tests/sampling", "tests/feeders", "tests/prescriptions"),
    "prescription": (PURE, "tests/prescriptions"),
    "driver/nvml": ("tests/driver",),
    "web": ("tests/web",),
}
"""What pytest runs for each folder: without processes, where that tells something."""
_LONGEST_SECONDS = 240.0
_TWINS = [
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn)),
    *((ast.Is, ast.IsNot), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.And, ast.Or)),
]
_OTHER = {a: b for one, other in _TWINS for a, b in ((one, other), (other, one))}
_OTHER |= {ast.Div: ast.Mult}
_DROPPED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete)
Change = Callable[[], None]


def changes(tree: ast.AST, *, at_top: bool = True) -> Iterator[tuple[ast.AST, Change]]:
    """Each node that can be changed, and what changes it, in a fixed order."""
    for name, field in ast.iter_fields(tree):
        if name in {"annotation", "returns"}:
            continue
        for at, child in enumerate(field if isinstance(field, list) else [field]):
            if not isinstance(child, ast.AST):
                continue
            yield from ((child, change) for change in _of_node(child))
            yield from changes(child, at_top=at_top and not isinstance(child, ast.FunctionDef))
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            in_block = name in {"body", "orelse"} and not at_top
            if in_block and isinstance(child, _DROPPED) and not is_text:
                yield child, partial(field.__setitem__, at, ast.Pass())


def _of_node(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in _OTHER:
        yield partial(setattr, node, "op", _OTHER[type(node.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER:
        yield partial(setattr, node, "ops", [_OTHER[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        other = not node.value if isinstance(node.value, bool) else 2 * node.value + 1
        yield partial(setattr, node, "value", other)
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield partial(setattr, node, "test", ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.Return) and ast.unparse(node) not in {"return", "return None"}:
        yield partial(setattr, node, "value", ast.Constant(None))


def mutant(source: str, number: int) -> tuple[str, str]:
    """The source with the change of that number; its line, and what it was and is there."""
    tree = ast.parse(source)
    node, change = [*changes(tree)][number]
    line, before = getattr(node, "lineno", 0), ast.unparse(node)
    change()
    return ast.unparse(tree), f"{line}: {before[:60]!r} -> {ast.unparse(node)[:60]!r}"


def is_caught(folder: str, package: Path) -> bool:
    """Whether tests fail on the package in folder `package`."""
    tests = PACKAGE.parents[1]
    path = os.pathsep.join([f"{package.parent}", f"{tests / 'tests'}", f"{tests / 'grafana'}"])
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *TESTS[folder]]
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            [*command, "--timeout=60"],
            cwd=tests,
            env={**os.environ, "PYTHONPATH": path},
            stdout=quiet,
            stderr=quiet,
            timeout=_LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> None:
    """Sample, change, test, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=[*TESTS], metavar="FOLDER")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = [
        (folder, path.relative_to(PACKAGE), number)
        for folder in options.folders
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for number, _ in enumerate(changes(ast.parse(path.read_text())))
    ]
    draw = random.Random(options.seed)  # noqa: S311 - no secret
    caught: Counter[str] = Counter()
    drawn = sorted(draw.sample(found, min(options.count, len(found))))
    with tempfile.TemporaryDirectory() as home:
        package = Path(home) / PACKAGE.name
        shutil.copytree(PACKAGE, package)
        for folder, path, number in drawn:
            source = (PACKAGE / path).read_text()
            changed, told = mutant(source, number)
            (package / path).write_text(changed)
            if is_caught(folder, package):
                caught[folder] += 1
            else:
                print(f"{path}:{told}", flush=True)
            (package / path).write_text(source)
    of = Counter(folder for folder, _, _ in drawn)
    for folder in options.folders:
        print(f"{folder}: {caught[folder]} of {of[folder]} caught")


if __name__ == "__main__":
    main()
