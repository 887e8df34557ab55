"""The command as a user runs it: a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = (sys.executable, "-m", "gpu_bottleneck_exporter")
PATIENCE_SECONDS = 60
"""How long a test waits for what must come; never a measure of speed."""
ANY_PORT = ("--web.listen-address", "127.0.0.1:0")


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """The environment without settings, and without a driver that can be used.

    An empty libnvidia-ml.so.1 in `folder` is found first, and cannot be loaded.
    """
    (folder / "libnvidia-ml.so.1").touch()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GPU_EXPORTER_")}
    return {**kept, "LD_LIBRARY_PATH": str(folder), "PYTHONUTF8": "1", **variables}


def run(
    folder: Path, *arguments: str, way: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command run to its end, `way` put before it."""
    return subprocess.run(
        [*way, *COMMAND, *arguments],
        cwd=folder,
        env=environment(folder, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait for what must come."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"{what} did not come"
        time.sleep(0.02)


@dataclass(frozen=True)
class Server:
    """A running `serve` or `demo`, leader of a session of its own."""

    process: subprocess.Popen[bytes]
    errors: Path
    known_boards: set[Path] = field(default_factory=set)

    @property
    def said(self) -> str:
        """What it has written to stderr so far."""
        return self.errors.read_text(encoding="utf-8")

    @property
    def url(self) -> str:
        """Where its metrics are."""
        pattern = re.compile(r"^serving on (https?://\S+)$", re.MULTILINE)
        wait_for(lambda: bool(pattern.search(self.said)) or self.ended, "the address")
        found = pattern.search(self.said)
        assert found is not None, self.said
        return found[1]

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def get(self, path: str | None = None, accept: str = "*/*") -> tuple[int, str]:
        """Status and body of `path`, of the metrics by default."""
        metrics = self.url
        url = metrics if path is None else "/".join(metrics.split("/")[:3]) + path
        try:
            request = urllib.request.Request(url, headers={"Accept": accept})
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def terminate(self) -> int:
        """Send SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def session(self) -> dict[int, list[str]]:
        """Living processes of its session, with their command lines."""
        return dict(_session(self.process.pid))

    def boards(self) -> set[Path]:
        """The boards that its processes work on."""
        words = {word for command in self.session().values() for word in command}
        found = {Path(word) for word in words if "/gpu-board-" in word}
        self.known_boards.update(found)
        return found


@contextmanager
def serving(
    folder: Path, *arguments: str, way: Sequence[str] = (), **variables: str
) -> Iterator[Server]:
    """The command in the background, `way` put before it; afterwards nothing of it is left."""
    errors = folder / "stderr"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [*way, *COMMAND, *arguments],
            cwd=folder,
            env=environment(folder, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
    server = Server(process, errors)
    try:
        yield server
    finally:
        server.boards()
        while left := server.session():
            for pid in left:
                _kill(pid)
            process.poll()
        process.wait()
        for board in server.known_boards:
            board.unlink(missing_ok=True)


def _session(leader: int) -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            command = (folder / "cmdline").read_bytes().decode().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state != "Z":
            yield int(folder.name), command


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
