"""The command as a user runs it: as a separate process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.tools import WITH_US
from support.waiting import PATIENCE_SECONDS, until

COMMAND = (sys.executable, "-m", "gpu_bottleneck_exporter")
ANY_PORT = ("--web.listen-address", "127.0.0.1:0")


def environment(folder: Path, **variables: str) -> dict[str, str]:
    """The environment without settings and without a usable driver.

    An empty libnvidia-ml.so.1 in `folder` is found first, and cannot be loaded.
    """
    (folder / "libnvidia-ml.so.1").touch()
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("GPU_EXPORTER_")}
    return {**inherited, "LD_LIBRARY_PATH": str(folder), "PYTHONUTF8": "1", **variables}


def run(
    folder: Path, *arguments: str, way: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, prefixed with `way`."""
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


@dataclass(frozen=True)
class Server:
    """A running `serve` or `demo`, leader of its own session."""

    process: subprocess.Popen[bytes]
    errors: Path
    known_boards: set[Path] = field(default_factory=set)

    @property
    def said(self) -> str:
        """Text written to stderr so far."""
        return self.errors.read_text(encoding="utf-8")

    @property
    def url(self) -> str:
        """Address of its metrics."""
        pattern = re.compile(r"^serving on (https?://\S+)$", re.MULTILINE)
        result = until(
            lambda: pattern.search(self.said),
            lambda: f"the address: {self.said}",
            unless=lambda: self.ended and not pattern.search(self.said),
        )
        return result[1]

    @property
    def port(self) -> int:
        """Port of its listener."""
        return int(self.target.rpartition(":")[2])

    @property
    def target(self) -> str:
        """The address for Prometheus to scrape."""
        return self.url.split("/")[2]

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
        """The boards that its processes use."""
        words = {word for command in self.session().values() for word in command}
        boards = {Path(word) for word in words if "/gpu-board-" in word}
        self.known_boards.update(boards)
        return boards


def serving(
    folder: Path, *arguments: str, way: Sequence[str] = (), **variables: str
) -> AbstractContextManager[Server]:
    """Run the command in the background, prefixed with `way`."""
    return background([*way, *COMMAND, *arguments], folder, environment(folder, **variables))


@contextmanager
def background(
    command: Sequence[str], folder: Path, variables: Mapping[str, str]
) -> Iterator[Server]:
    """Run what serves in `folder`; nothing of it is left afterwards."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="stderr-", delete=False) as file:
        process = subprocess.Popen(
            [*WITH_US, *command],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
    server = Server(process, Path(file.name))
    try:
        yield server
    finally:
        server.boards()
        end_session(process)
        for board in server.known_boards:
            board.unlink(missing_ok=True)


def _session(leader: int) -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # Any process on the machine is looked at: names may be any bytes.
            stat = os.fsdecode((folder / "stat").read_bytes())
            command = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _, _, session = stat.rpartition(")")[2].split()[:4]
        if int(session) == leader and state != "Z":
            yield int(folder.name), command


def end_session(leader: subprocess.Popen[bytes]) -> None:
    """Kill what is in its session, and wait until it is gone."""
    while left := [pid for pid, _ in _session(leader.pid)]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        leader.poll()
    leader.wait()
