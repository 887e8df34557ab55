"""Control groups for tests: created, limited, entered, removed. v1, v2 and both at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.leftovers import mark

ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_PATIENCE_SECONDS = 10.0
_V1_NAMES = {"cpu": ("cpu", "cpu,cpuacct"), "memory": ("memory",), "io": ("blkio",)}


class Unavailable(Exception):  # noqa: N818 - no error: a fact about the machine
    """This machine cannot stage it; `kernel`: it could not with any rights."""

    def __init__(self, reason: str, *, kernel: bool = False) -> None:
        super().__init__(reason)
        self.kernel = kernel


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a control group; None: unlimited."""

    cpu_cores: float | None = None
    memory_bytes: int | None = None
    read_bytes_per_second: int | None = None


@contextmanager
def limited(limits: Limits, folder: Path) -> Iterator[tuple[Path, ...]]:
    """Control groups with `limits`; read limits apply to the disk that `folder` is on.

    Yields the folders whose cgroup.procs the caller writes. Whatever still runs in them at the
    end is killed. Raises Unavailable if the machine has no such limits.
    """
    with ExitStack() as cleanup:
        groups: dict[Path, Path] = {}
        for controller, files in _settings(limits, folder).items():
            root, unified = _hierarchy(controller)
            if root not in groups:
                groups[root] = cleanup.enter_context(_made(root))
            if unified:
                cleanup.enter_context(_enabled(root, controller))
            _write(groups[root], files[1 if unified else 0])
        yield tuple(groups.values())


def disk_of(folder: Path) -> str:
    """`major:minor` of the whole disk that `folder` is on.

    Raises Unavailable if that is not a disk (tmpfs, overlay).
    """
    device = folder.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    block = Path("/sys/dev/block") / name
    if not block.exists():
        raise Unavailable(f"{folder} is not on a disk")
    whole = block.resolve().parent if (block / "partition").exists() else block
    return (whole / "dev").read_text().strip()


def _settings(limits: Limits, folder: Path) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Files to write under v1 and under v2, by controller."""
    fields: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
    if limits.cpu_cores is not None:
        quota = str(round(limits.cpu_cores * _PERIOD_US))
        v1 = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota}
        fields["cpu"] = v1, {"cpu.max": f"{quota} {_PERIOD_US}"}
    if limits.memory_bytes is not None:
        size = str(limits.memory_bytes)
        fields["memory"] = {"memory.limit_in_bytes": size}, {"memory.max": size}
    if limits.read_bytes_per_second is not None:
        disk, rate = disk_of(folder), limits.read_bytes_per_second
        fields["io"] = (
            {"blkio.throttle.read_bps_device": f"{disk} {rate}"},
            {"io.max": f"{disk} rbps={rate}"},
        )
    return fields


def _hierarchy(controller: str) -> tuple[Path, bool]:
    """Mount point of `controller`, and whether that is v2."""
    for root in (ROOT, ROOT / "unified"):
        if controller in _words(root / "cgroup.controllers"):
            return root, True
    for name in _V1_NAMES[controller]:
        if (ROOT / name / "cgroup.procs").exists():
            return ROOT / name, False
    if not ROOT.is_dir():
        raise Unavailable(f"no control groups at {ROOT}")
    raise Unavailable(f"the kernel offers no cgroup controller {controller}", kernel=True)


@contextmanager
def _made(root: Path) -> Iterator[Path]:
    folder = root / f"gpu-scenario-{mark()}-{uuid.uuid4().hex[:12]}"
    try:
        folder.mkdir()
    except OSError as error:
        raise Unavailable(f"cannot make a control group below {root}: {error}") from error
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while folder.exists():
        for pid in _words(folder / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def _enabled(root: Path, controller: str) -> Iterator[None]:
    """Enable `controller` in the children of v2's `root`; restores its state afterwards."""
    control = root / "cgroup.subtree_control"
    if controller in _words(control):
        yield
        return
    _write(root, {control.name: f"+{controller}"})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # another program uses it by now
            control.write_text(f"-{controller}")


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        if not (folder / name).exists():
            raise Unavailable(f"the kernel offers no {name}", kernel=True)
        try:
            (folder / name).write_text(text)
        except OSError as error:
            raise Unavailable(f"cannot write {folder / name}: {error}") from error


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
