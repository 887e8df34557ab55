"""Change the package in one place after the other, and see whether its tests notice.

    PYTHONPATH=tests python -m mutants [--count 300] [--seed 1] [FOLDER ...]

prints the changes that they let pass, and how many of each folder they caught. First all tests run
once, to see which lines each of them reaches; for a change, those that reach it run first. Several
changes are tried side by side, as tests wait for more than half of their time. mutmut
runs tests in a copy of the project, and these read the project. Of cosmic-ray's mutants, three in
four put another operator in place of one, most of them in types, and none drops a statement; it
runs one command for all.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import coverage
import pytest

from tables.tested import imported

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "exporter/gpu_bottleneck_exporter"
TESTS = {
    "accounting": ("tests/accounting",),
    "feeders": ("tests/feeders",),
    "host": ("tests/host", "tests/feeders", "tests/workload"),
    "sampling": (
        "tests/sampling",
        "tests/prescriptions",
        "tests/jobs",
        "tests/e2e/test_kubelet.py",
    ),
    "prescription": ("tests/prescriptions",),
    "driver/nvml": ("tests/driver", "tests/workload"),
    "web": ("tests/web", "tests/browser"),
}
"""Arguments of pytest for each folder; other tests that import the changed module are added."""
Place = tuple[str, Path, int]
"""The folder, the file in the package, the number of the change in it."""
CAUGHT, MISSED, DEAD = "caught", "missed", "hung or crashed"
BROKEN = "nothing can be collected"
_OF_STATUS = {
    pytest.ExitCode.OK: MISSED,
    pytest.ExitCode.NO_TESTS_COLLECTED: MISSED,
    pytest.ExitCode.USAGE_ERROR: BROKEN,
}
_AT_ONCE = 5
_QUICKEST = 10
"""Number of tests that run before others are collected: few changes pass them."""
_TEST_SECONDS = 60
_LONGEST_SECONDS = 1800.0
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


def mutant(source: str, number: int) -> tuple[str, int, str]:
    """The source with the change of that number; its line; what it was and is there."""
    tree = ast.parse(source)
    node, change = [*changes(tree)][number]
    line, before = getattr(node, "lineno", 0), ast.unparse(node)
    change()
    after = ast.unparse(node)
    result = f"{before[:90]!r} -> {after[:90]!r}" if after != before else f"without {before[:90]!r}"
    return ast.unparse(tree), line, result


class Reached:
    """A pytest plugin: which tests reach each line of a folder, and how long they take."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tests: dict[str, dict[int, list[str]]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this is entered, tests are seen."""
        result = coverage.Coverage(data_file=None, source=[f"{self._folder}"])
        with result.collect():
            yield
        data = result.get_data()
        for path in data.measured_files():
            name = f"{Path(path).relative_to(self._folder)}"
            self._tests[name] = data.contexts_by_lineno(path)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        outcome = coverage.Coverage.current()
        assert outcome
        outcome.switch_context(item.nodeid)
        result = yield
        outcome.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def of(self, name: str, line: int) -> list[str]:
        """The tests that reach the line, the quickest first; of the file, if none is known to."""
        of_file = self._tests.get(name, {})
        result = {*of_file.get(line, ())} - {""}
        result = result or set().union(*of_file.values()) - {""}
        return sorted(result, key=self._seconds.__getitem__)


class Judge:
    """A pytest plugin: runs some tests before all others, and sees which one fails."""

    def __init__(self, tests: list[str]) -> None:
        self._at = {test: at for at, test in enumerate(tests)}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._at.get(item.nodeid, len(self._at)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


def test(package: Path, paths: Iterable[str], plugin: Reached | Judge) -> Reached | str:
    """Report of the plugin after a run in a process of its own, as it imports the package."""
    context = get_context("fork")
    result, sender = context.Pipe(duplex=False)
    child = context.Process(target=_test, args=(package, paths, plugin, sender))
    child.start()
    sender.close()
    outcome: Reached | str = DEAD
    with suppress(EOFError):
        if result.poll(_LONGEST_SECONDS):
            outcome = result.recv()
    child.kill()
    child.join()
    return outcome


def _test(package: Path, paths: Iterable[str], plugin: Reached | Judge, sender: Connection) -> None:
    sys.path.insert(0, f"{package.parent}")
    os.environ["PYTHONPATH"] = f"{package.parent}:{ROOT}/tests:{ROOT}/grafana"
    os.chdir(ROOT)
    options = ["-m", "not alone", "-p", "no:cacheprovider"]
    watching = plugin.watching if isinstance(plugin, Reached) else nullcontext
    if isinstance(plugin, Judge):
        options += ["-x", f"--timeout={_TEST_SECONDS}"]
        sys.dont_write_bytecode = True  # a change in the same second might go unnoticed
    with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stdout(nothing), watching():
        status = pytest.main([*options, *paths], plugins=[plugin])
    verdict = _OF_STATUS.get(pytest.ExitCode(status), CAUGHT)
    result = plugin.failed if isinstance(plugin, Judge) else plugin if verdict != BROKEN else ""
    sender.send(result or verdict)


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the package."""
    with tempfile.TemporaryDirectory() as home:
        package = Path(home) / PACKAGE.name
        shutil.copytree(PACKAGE, package)
        yield package


def reached_in(folder: str) -> Reached:
    """Which tests reach what in a folder. One that fails, for being traced, is of no matter."""
    with copied() as package:
        result = test(package, TESTS[folder], Reached(package / folder))
    if not isinstance(result, Reached):
        sys.exit(f"the tests of {folder}: {result}")
    return result


def is_caught(change: Place, made: tuple[str, int, str], first: list[str]) -> bool:
    """Whether tests catch what a change `made`, of which `first` reach it. Prints it if not.

    A test has caught it if it passes without it: others may be late on a busy machine.
    """
    folder, path, _ = change
    changed, line, result = made
    with copied() as package:
        (package / path).write_text(changed)
        verdict = test(package, first[:_QUICKEST], Judge(first)) if first else MISSED
        if verdict in {MISSED, BROKEN}:
            every = [*TESTS[folder], *importing(folder, path)]
            verdict = test(package, every, Judge(first))
        shutil.copy2(PACKAGE / path, package / path)
        if "::" in f"{verdict}" and test(package, [f"{verdict}"], Judge([])) == MISSED:
            verdict = CAUGHT
    caught = verdict in {CAUGHT, BROKEN}
    if not caught:
        print(f"{path}:{line}: {result}: {verdict}", flush=True)
    return caught


def importing(folder: str, path: Path) -> Iterator[str]:
    """The other test files that import a module."""
    module = f"{path.with_suffix('')}"
    for name, modules in _imports().items():
        if module in modules and not name.startswith(TESTS[folder]):
            yield name


@cache
def _imports() -> Mapping[str, set[str]]:
    """Imports of the package by each test file."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return {f"{file.relative_to(ROOT)}": {*imported(file)} for file in files}


def main() -> None:
    """Sample, change, test, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=[*TESTS], metavar="FOLDER")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    values = [
        (folder, path.relative_to(PACKAGE), number)
        for folder in options.folders
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for number, _ in enumerate(changes(ast.parse(path.read_text())))
    ]
    draw = random.Random(options.seed)  # noqa: S311 - no secret
    drawn = sorted(draw.sample(values, min(options.count, len(values))))
    made = [mutant((PACKAGE / path).read_text(), number) for _, path, number in drawn]
    of = Counter(folder for folder, _, _ in drawn)
    with ProcessPoolExecutor(_AT_ONCE, get_context("fork")) as pool:
        reached = dict(zip(of, pool.map(reached_in, of), strict=True))
        first = [
            reached[folder].of(f"{path.relative_to(folder)}", line)
            for (folder, path, _), (_, line, _) in zip(drawn, made, strict=True)
        ]
        verdicts = zip(drawn, pool.map(is_caught, drawn, made, first), strict=True)
        caught = Counter(folder for (folder, _, _), right in verdicts if right)
    for folder, count in of.items():
        print(f"{folder}: {caught[folder]} of {count} caught")


if __name__ == "__main__":
    main()
