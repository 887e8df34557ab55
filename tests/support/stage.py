"""Commands on a virtual board that any user may drive, run with the rights of a `Way`."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from scenarios.cgroups import Limits, Unavailable, limited
from support import command
from support.command import ANY_PORT, Server
from support.drivers import Libraries
from support.metrics import Metrics
from support.rights import Way
from support.tools import missing
from support.waiting import until

CAPABILITIES = ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "root")
PRIVATE = {
    "process_io": ("I/O counters", "memory shows as storage", *CAPABILITIES),
    "wait_channel": ("network, queue, requests and asleep become unknown", *CAPABILITIES),
    "connections": ("requests pending on connections cannot be seen", *CAPABILITIES[:2]),
}
"""Files that the kernel hides from other users, and the words of `check` about it."""
NO_FEEDERS = ("processes cannot be seen", "unknown", "hostPID: true", "--pid=host", "hidepid")
"""Words of `check` if processes are not visible."""


@dataclass(frozen=True)
class Stage:
    """A board that any user may drive and the driver's library, in an accessible folder."""

    folder: Path
    board: Board
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_variables(self) -> dict[str, str]:
        return {
            "FAKE_NVML_BOARD": f"{self.board.path}",
            # They come after 20 s of idling: of two exporters, one would have them first.
            "GPU_EXPORTER_COLLECTOR_PRESCRIPTION": "false",
            **self.variables,
        }


@contextmanager
def staged(libraries: Libraries, gpus: int) -> Iterator[Stage]:
    """A stage with this many GPUs."""
    # Not below pytest's folder, which other users cannot enter.
    with tempfile.TemporaryDirectory(prefix="gpu-rights-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(libraries.path(580), folder)
        with create(folder / "board", gpus=[H100] * gpus) as board:
            board.path.chmod(0o666)
            yield Stage(folder, board)


def serving(stage: Stage, way: Way, *arguments: str) -> AbstractContextManager[Server]:
    """Run `serve`, by default without `arguments`; nothing of it is left afterwards."""
    words = (*(arguments or ("serve",)), *ANY_PORT)
    return command.serving(stage.folder, *words, way=way, **stage.all_variables)


def ran(stage: Stage, way: Way, *arguments: str) -> tuple[int, str]:
    """Status and output of a command."""
    done = command.run(stage.folder, *arguments, way=way, **stage.all_variables)
    assert done.stderr == "", done.stderr
    return done.returncode, done.stdout


def scraped_when(server: Server, condition: Callable[[Metrics], bool], what: str) -> Metrics:
    """Metrics once the condition holds for them."""

    def found() -> Metrics | None:
        status, text = server.get()
        assert status == 200
        metrics = Metrics(text)
        return metrics if condition(metrics) else None

    return until(found, what, unless=lambda: server.ended)


def assert_told(report: tuple[int, str], missing: Mapping[str, tuple[str, ...]]) -> None:
    """`check` reports `works, with gaps`, and the cost and remedy of each gap."""
    status, result = report
    assert status == (1 if missing else 0), result
    gaps = dict(re.findall(r"^gap +(\w+): .*\n  remedy +(.*)$", result, re.MULTILINE))
    assert gaps.keys() == missing.keys(), result
    unsaid = {s: word for s, words in missing.items() for word in words if word not in gaps[s]}
    assert not unsaid, result


@contextmanager
def caged(limits: Limits, folder: Path) -> Iterator[tuple[Path, ...]]:
    """Control groups with `limits`; skips if rights or controllers are missing."""
    with ExitStack() as cleanup:
        try:
            yield cleanup.enter_context(limited(limits, folder))
        except Unavailable as reason:
            if reason.kernel:
                pytest.skip(f"{reason}")
            missing(f"{reason}")
