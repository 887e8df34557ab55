"""Fixtures that several parts need: boards, and the C stand-in driver compiled once."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from gpu_bottleneck_exporter.demo.board.create import H100, Model
from gpu_bottleneck_exporter.host.aside import memory_reads, proc_reads, socket_queries
from gpu_bottleneck_exporter.stacktraces.reader import stack_reads
from support import leftovers, processes, tools
from support.board import Board
from support.children import Parent, parent
from support.drivers import Libraries
from support.models import Mig, create_with_mig
from support.waiting import PATIENCE_SECONDS

# jsonschema would compile all grammars of it, a second in each worker, for formats not asked for.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
# By default an example may take 0.2 s: a busy machine takes its time.
# The examples are always the same, or a run would fail by chance.
settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="RANDOM_EXAMPLES" not in os.environ,
)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-processes", action="store_true", help="only tests that start none")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "first: takes a minute, so it must not be begun last")
    config.addinivalue_line("markers", "processes: starts a process, or listens on a socket")
    config.addinivalue_line("markers", "alone: to what it judges, other tests are strangers")
    config.addinivalue_line("markers", "quick: of those, what every change must pass")
    if not config.getoption("--no-processes"):
        leftovers.end_with_us()
    gc.disable()


def pytest_collection_finish() -> None:
    # What has been imported stays: to look through all of it, or through it again and again, takes
    # the garbage collector seconds.
    gc.enable()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or sockets that are kept till the end are complained of


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    if config.getoption("--no-processes"):
        processes.mark(items)
        pure = [item for item in items if not item.get_closest_marker("processes")]
        config.hook.pytest_deselected(items={*items} - {*pure})
        items[:] = pure


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were skipped for programs of Debian, and how to get these."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = [f"{report.longrepr[-1] if report.longrepr else ''}" for report in skipped]
    if lacking := [reason for reason in reasons if tools.INSTALL in reason]:
        packages = {reason.partition(tools.INSTALL)[2].split()[-1] for reason in lacking}
        text = f"{len(lacking)} tests were skipped, as programs are missing"
        terminalreporter.write_line(f"{text} ({', '.join(sorted(packages))})")
        terminalreporter.write_line("To install them, on Debian as root: make tools")


@pytest.fixture(scope="session")
def begun(pytestconfig: pytest.Config) -> list[str]:
    """Forbidden processes that were started."""
    return processes.refuse() if pytestconfig.getoption("--no-processes") else []


@pytest.fixture(autouse=True)
def no_processes(begun: list[str]) -> Iterator[None]:
    """Fail a test that starts a process, with --no-processes."""
    begun.clear()
    yield
    assert not begun, f"{begun}: `make check` leaves out what is marked @pytest.mark.processes"


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session", autouse=True)
def patient_reads() -> None:
    """A process that answers late, on a busy machine, is not one that holds us up."""
    for item in (memory_reads, socket_queries, proc_reads, stack_reads):
        item._timeout = PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def in_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the pod in which the tests themselves may run."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.fixture(autouse=True)
def real_proc() -> Iterator[None]:
    """Reset the folder that a test made psutil read instead of /proc."""
    yield
    psutil.PROCFS_PATH = "/proc"


@pytest.fixture
def make_board(tmp_path: Path) -> Iterator[Callable[..., Board]]:
    boards: list[Board] = []

    def make(gpus: Sequence[Model] = (H100,), mig: Mig = (), **driver_version: str) -> Board:
        path = tmp_path / f"board{len(boards)}"
        boards.append(create_with_mig(path, gpus, mig, **driver_version))
        return boards[-1]

    yield make
    for board in boards:
        board.close()
    os.environ.pop("FAKE_NVML_BOARD", None)


@pytest.fixture
def start() -> Iterator[Callable[[], Parent]]:
    """Real processes that do as they are told."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(parent())
