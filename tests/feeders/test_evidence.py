"""Evidence in words that people may trust."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.activity import ACTIVITY_OF
from gpu_bottleneck_exporter.feeders import evidence
from gpu_bottleneck_exporter.feeders.probe import DeepProbe, ProbeContext
from gpu_bottleneck_exporter.feeders.tcp import PendingRequest
from gpu_bottleneck_exporter.host.sockets import Endpoint
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.schedule import CADENCE
from support.programs import program
from support.rows import rows
from support.trees import lay

PROC = Path("/proc")
SECOND = 1_000_000_000
STORE = Endpoint(bytes([10, 0, 0, 2]), 443)
SLEEPS = [wait for wait in Wait if ACTIVITY_OF[wait].rests or wait is Wait.SOCKET]


def files_on(proc: Path, *mounts: tuple[str, str]) -> list[str]:
    """Words for a process with a file on each of `mounts`: its point and its type."""
    lines = "".join(f"1 0 0:1 / {at} rw - {kind} none rw\n" for at, kind in mounts)
    lay(proc, {"7/mountinfo": lines, "7/fd/none": ""})
    (proc / "7/fd/none").unlink()
    for number, (at, _) in enumerate(mounts):
        (proc / f"7/fd/{number}").symlink_to(f"{at}/file")
    return list(evidence.storage(proc, [7]))


def test_each_reason_of_a_probe_has_words() -> None:
    with program("ready(); told()") as process:
        deep = DeepProbe(PROC, process.pid, None)
        reasons = {wait.value: deep.probe(0, wait, ProbeContext()).reason for wait in SLEEPS}
        deep.close()
    for reason in {*reasons, *reasons.values()}:
        (result,) = evidence.asleep({reason: 3})
        assert result.startswith("the main process sleeps ")
        assert result.endswith(" (100%)")


@rows(
    "reasons, said",
    {
        "none": ({}, []),
        "none that was seen": ({"lock": 0}, []),
        "two": ({"lock": 3, "timer": 1}, ["for a lock (75%), on a timer (25%)"]),
        "the two that last longest": (
            {"child": 1, "lock": 6, "timer": 3},
            ["for a lock (60%), on a timer (30%)"],
        ),
        "input": ({"input": 2}, ["for input (100%)"]),
    },
)
def test_wording_of_sleeps(reasons: dict[str, int], said: list[str]) -> None:
    assert list(evidence.asleep(reasons)) == [f"the main process sleeps {item}" for item in said]


OWED = PendingRequest(STORE, 700, 99 * SECOND)


@rows(
    "owed, said",
    {
        "no host is known": ([], ""),
        "one": ([OWED], "no response from 10.0.0.2:443 after 700 ms"),
        "the slowest of two": (
            [PendingRequest(STORE._replace(port=1), 5, 99 * SECOND), OWED],
            "no response from 10.0.0.2:443 after 700 ms",
        ),
        "long ago": ([OWED._replace(at_ns=100 * SECOND - CADENCE.recent_ns)], ""),
        "one that the kernel does not name": (
            [OWED._replace(remote=Endpoint(b"", 0))],
            "no response from an unknown address after 700 ms",
        ),
    },
)
def test_hosts_that_a_feeder_waits_for(owed: list[PendingRequest], said: str) -> None:
    assert list(evidence.pending(owed, 100 * SECOND)) == [said] * bool(said)


def test_where_files_are_remote_ones_first_and_three_at_most(tmp_path: Path) -> None:
    mounts = [
        ("/z", "ext4"),
        ("/y", "ext4"),
        ("/layers", "fuse.squashfuse"),
        ("/data", "fuse.sshfs"),
    ]
    assert files_on(tmp_path, *mounts) == [
        "has files open on /data (fuse.sshfs, remote)",
        "has files open on /layers (fuse.squashfuse, local or remote)",
        "has files open on /y (ext4, local)",
    ]


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
    for result in evidence.storage(tmp_path, [7]):
        assert result.isprintable()
        assert len(result) < 200


def test_origin_of_awaited_datagrams() -> None:
    pairs = [(98 * SECOND, STORE), (99 * SECOND, STORE._replace(port=5))]
    (result,) = evidence.datagrams(pairs, 100 * SECOND)
    assert result == "waits for datagrams: 10.0.0.2:5"
    assert not list(evidence.datagrams(pairs, 99 * SECOND + CADENCE.recent_ns))


def test_threads_are_described_by_the_busiest_if_they_use_a_core() -> None:
    (result,) = evidence.threads(3.26, "pt_data_\x1bpin")
    assert "use 3.3 cores, pt_data_" in result
    assert result.endswith("OMP_NUM_THREADS limits those of OpenMP")
    assert result.isprintable()
    assert list(evidence.threads(0.9, "pt_data_pin")) == []


def test_a_lock_of_the_driver_is_reported_if_a_main_was_sampled_in_it() -> None:
    assert list(evidence.in_driver(0.0, {"uvm_ioctl"})) == []
    (result,) = evidence.in_driver(0.4, {"uvm_ioctl", ""})
    assert result == "the main process waits for a lock of the GPU's driver (40%): uvm_ioctl"
