"""Files are kept open as far as there is room, and read all the same where there is none."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.feeders.probe import DeepProbe, ProbeContext
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.host import files
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import FileLimitError, KeptFile, list_names, read
from gpu_bottleneck_exporter.host.links import links
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.sockets import Sockets
from gpu_bottleneck_exporter.host.threads import Threads
from gpu_bottleneck_exporter.host.waits import Wait
from support.limits import all_in_use, numbers_of_the_next
from support.programs import descriptors, program
from support.trees import lay

PROC = Path("/proc")
UNDER_A_LIMIT = """
import resource, sys
from pathlib import Path
soft, hard = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from gpu_bottleneck_exporter.host import files
files.allow_many_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], files._max_kept_files())
"""


def test_open_files_are_bounded_and_all_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "_max_kept_files", partial(int, numbers_of_the_next(10)[-1] + 1))
    before = descriptors()
    lay(tmp_path, {f"{number}": f"{number}\n" for number in range(100)})
    values = [KeptFile(tmp_path / f"{number}") for number in range(100)]
    for _ in range(2):
        assert [file.read() for file in values] == [b"%d\n" % number for number in range(100)]
    assert len(descriptors() - before) == 10
    for file in values[:10]:
        file.close()
    assert [file.read() for file in values[50:]] == [b"%d\n" % number for number in range(50, 100)]
    assert len(descriptors() - before) == 10, "what was given back is taken by others"
    for file in values:
        file.close()


def test_a_lack_of_descriptors_proves_nothing_of_a_file_or_a_process() -> None:
    result, reader = KeptFile("/proc/self/stat"), ProcessReader(PROC, os.getpid())
    reader.close()
    attempts: list[Callable[[], object]] = [result.read, reader.stat]
    attempts += [lambda: read("/proc/self/stat"), lambda: list_names("/proc/self/task", 10)]
    with all_in_use():
        for attempt in attempts:
            with pytest.raises(FileLimitError, match="Too many open files"):
                attempt()
    assert reader.stat(), "it is not gone because we cannot look"
    reader.close()


@pytest.mark.parametrize("free", range(8))
def test_a_reader_without_room_for_the_next_file_keeps_none_and_reads_later(free: int) -> None:
    code = "s = socket.socket(); named('a', locked); named('b', burn); ready(); told()"
    with program(code) as process:
        text = read(f"/proc/{process.pid}/cgroup") or ""
        probe = DeepProbe(PROC, process.pid, AnswerTimeouts(1000))
        threads, sockets = Threads(PROC, process.pid), Sockets(PROC, process.pid)
        looks: list[Callable[[], object]] = [
            lambda: FeederProcess(PROC, process.pid),
            lambda: probe.probe(0, Wait.LOCK, ProbeContext()),
            lambda: Cgroups(Path("/sys")).get(text),
            lambda: links(PROC, process.pid),
            lambda: threads.sample(0),
            sockets.query,
        ]
        for look in looks:
            with all_in_use(but=free), contextlib.suppress(FileLimitError):
                look()
        assert {thread.name for thread in threads.sample(0)} == {"a", "b"}
        assert len(sockets.query()) == 1
        threads.close()


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "kept"),
    [(64, 64, 64, 16), (256, 1024, 1024, 384), (1024, 20_000, 16_384, 4096)],
)
def test_enough_is_left_for_others(soft: int, hard: int, raised: int, kept: int) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip(f"no more than {hard} files may be open here")
    command = [sys.executable, "-c", UNDER_A_LIMIT, str(soft), str(hard)]
    assert subprocess.check_output(command, text=True).split() == [str(raised), str(kept)]


def test_a_list_of_more_than_a_page_is_read_whole_through_a_kept_descriptor() -> None:
    """The kernel hands it out by the page."""
    code = "for _ in range(800):\n    if os.fork() == 0:\n        signal.pause()\n"
    with program(code + "ready(); told()") as process:
        path = f"/proc/{process.pid}/task/{process.pid}/children"
        children = KeptFile(path)
        assert len((children.read() or b"").split()) == 800
        assert children.whole
        children.close()
