"""What was seen, in words that people may trust."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.feeders import evidence
from gpu_bottleneck_exporter.feeders.probe import DeepProbe, Surroundings
from gpu_bottleneck_exporter.feeders.tcp import Owed
from gpu_bottleneck_exporter.host.sockets import Endpoint
from gpu_bottleneck_exporter.host.waits import Wait
from support.programs import program
from support.trees import lay

PROC = Path("/proc")
SECOND = 1_000_000_000
STORE = Endpoint(bytes([10, 0, 0, 2]), 443)
SLEEPS = [wait for wait in Wait if wait not in (Wait.RUN, Wait.DISK, Wait.GONE)]


def files_on(proc: Path, *mounts: tuple[str, str]) -> list[str]:
    """What is said of a process with a file on each of `mounts`: its point and its type."""
    lines = "".join(f"1 0 0:1 / {at} rw - {kind} none rw\n" for at, kind in mounts)
    lay(proc, {"7/mountinfo": lines, "7/fd/none": ""})
    (proc / "7/fd/none").unlink()
    for number, (at, _) in enumerate(mounts):
        (proc / f"7/fd/{number}").symlink_to(f"{at}/file")
    return list(evidence.storage(proc, [7]))


@pytest.mark.parametrize("wait", SLEEPS)
def test_each_sleep_has_words(wait: Wait) -> None:
    (said,) = evidence.asleep({wait.value: 3})
    assert said.startswith("the main process sleeps ")
    assert said.endswith(" (100%)")


@pytest.mark.parametrize("wait", SLEEPS)
def test_each_reason_that_a_look_gives_has_words(wait: Wait) -> None:
    with program("ready(); told()") as one:
        deep = DeepProbe(PROC, one.pid, None)
        seen = deep.probe(0, wait, Surroundings())
        deep.close()
    assert seen.first is not Activity.RUN
    assert list(evidence.asleep(Counter([seen.reason])))


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        ({}, []),
        ({"lock": 0}, []),
        ({"lock": 3, "timer": 1}, ["the main process sleeps for a lock (75%), on a timer (25%)"]),
        (
            {"child": 1, "lock": 6, "timer": 3},
            ["the main process sleeps for a lock (60%), on a timer (30%)"],
        ),
        ({"input": 2}, ["the main process sleeps for input (100%)"]),
    ],
)
def test_the_two_sleeps_that_last_longest_are_told(
    reasons: dict[str, int], said: list[str]
) -> None:
    assert list(evidence.asleep(reasons)) == said


@pytest.mark.parametrize(
    ("owed", "said"),
    [
        pytest.param([], [], id="nobody was asked"),
        pytest.param(
            [Owed(STORE, 700, 99 * SECOND)],
            ["asked 10.0.0.2:443, no answer yet after 700 ms"],
            id="one",
        ),
        pytest.param(
            [Owed(STORE._replace(port=1), 5, 99 * SECOND), Owed(STORE, 700, 99 * SECOND)],
            ["asked 10.0.0.2:443, no answer yet after 700 ms"],
            id="the slowest of two",
        ),
        pytest.param([Owed(STORE, 700, 80 * SECOND)], [], id="long ago"),
        pytest.param(
            [Owed(Endpoint(b"", 0), 700, 99 * SECOND)],
            ["asked an unknown address, no answer yet after 700 ms"],
            id="one that the kernel does not name",
        ),
    ],
)
def test_whom_a_feeder_waits_for(owed: list[Owed], said: list[str]) -> None:
    assert list(evidence.asked(owed, 100 * SECOND)) == said


def test_where_files_are(tmp_path: Path) -> None:
    layers = ("/layers", "fuse.squashfuse")
    assert files_on(tmp_path, ("/data", "fuse.sshfs"), ("/local", "ext4"), layers) == [
        "has files open on /data (fuse.sshfs, remote)",
        "has files open on /layers (fuse.squashfuse, local or remote)",
        "has files open on /local (ext4, local)",
    ]


def test_three_mounts_are_told_remote_ones_first(tmp_path: Path) -> None:
    mounts = [(f"/a{number}", "ext4") for number in range(5)]
    said = files_on(tmp_path, *mounts, ("/z", "nfs"))
    assert len(said) == 3
    assert said[0] == "has files open on /z (nfs, remote)"


@pytest.mark.parametrize(
    ("point", "kind"),
    [
        ("/\x1b[2J\x1b[31mgone", "nfs"),
        ("/a\u202eb\u2066c\x07\x7f", "nfs"),
        ("/\udcff\udcfe", "ext4"),
        ("/" + 5000 * "x", "nfs"),
        ("/data", "fuse.\x1b[2J\x07" + 5000 * "x"),
        ("/data", "fuse.\u202e"),
    ],
)
def test_a_job_cannot_write_to_our_terminal(tmp_path: Path, point: str, kind: str) -> None:
    lines = f"1 0 0:1 / {point} rw - {kind} none rw\n"
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    (folder / "mountinfo").write_bytes(lines.encode(errors="surrogateescape"))
    (folder / "fd/3").symlink_to(point[:200])
    for said in evidence.storage(tmp_path, [7]):
        assert said.isprintable()
        assert len(said) < 200


def test_of_those_that_ended_nothing_is_said() -> None:
    with program("") as one:
        pass
    assert list(evidence.storage(PROC, [one.pid])) == []
