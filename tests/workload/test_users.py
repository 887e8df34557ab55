"""Names of users: whose they are, and a directory service that takes its time."""

from __future__ import annotations

import pwd
import threading
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.workload import users
from gpu_bottleneck_exporter.workload.users import UserNames, known_name
from support.trees import lay
from support.waiting import PATIENCE_SECONDS, until

ROOT = "27 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
OVERLAY = "812 700 0:52 / / rw,relatime - overlay overlay rw\n"
REST = "28 27 0:21 / /proc rw,relatime - proc proc rw\n"
USUAL_PATIENCE_SECONDS = users._PATIENCE_SECONDS


def names_where(
    root: Path, monkeypatch: pytest.MonkeyPatch, first: str | None, ours: str, *, hosts: bool | None
) -> UserNames:
    """`hosts`: whether we are in the host's PID namespace; `first`, `ours`: the mounts."""
    proc = lay(root / "proc", {"self/mountinfo": ours})
    if first is not None:
        lay(proc, {"1/mountinfo": first})
    # Recorded files cannot have the inode that tells.
    monkeypatch.setattr(users, "in_hosts_pid_namespace", lambda _: hosts)
    monkeypatch.setattr(users, "_PATIENCE_SECONDS", PATIENCE_SECONDS)
    return UserNames(proc, lambda uid: f"user{uid}")


def test_names_known_here_are_the_hosts_where_the_root_is_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ROOT.replace("27 1 ", "527 500 ")
    found = names_where(tmp_path, monkeypatch, REST + ROOT, ours + REST, hosts=True)
    assert (found.of(0), found.of(1000)) == ("root", "user1000")


@pytest.mark.parametrize(
    ("first", "ours", "hosts"),
    [
        (ROOT, OVERLAY, True),
        (ROOT, ROOT + OVERLAY, True),
        (ROOT, ROOT.replace(" / / ", " /images/1 / "), True),
        (ROOT, ROOT, False),
        (ROOT, ROOT, None),
        (None, ROOT, True),
        ("", "", True),
        (REST, REST, True),
        ("too short\n", "too short\n", True),
    ],
)
def test_names_of_a_container_are_not_believed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str | None,
    ours: str,
    hosts: bool | None,  # noqa: FBT001 - a parameter
) -> None:
    found = names_where(tmp_path, monkeypatch, first, ours, hosts=hosts)
    assert (found.of(0), found.of(1000)) == ("root", "1000")


class Directory:
    """A directory service, which can be made to wait."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.asked: list[int] = []
        self.answers = threading.Event()
        self.answers.set()

    def look_up(self, uid: int) -> str | None:
        self.asked.append(uid)
        assert self.answers.wait(PATIENCE_SECONDS)
        return self.names.get(uid)


@pytest.fixture
def directory() -> Directory:
    return Directory({1000: "alice", 1001: "bob"})


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: Directory) -> UserNames:
    found = names_where(tmp_path, monkeypatch, ROOT, ROOT, hosts=True)
    found._look_up = directory.look_up
    return found


def test_nobody_is_asked_for_twice(names: UserNames, directory: Directory) -> None:
    assert [names.of(uid) for uid in (1000, 1000, 7, 7, 0)] == ["alice", "alice", "7", "7", "root"]
    assert directory.asked == [1000, 7]


def test_who_has_no_name_is_asked_for_again_later(names: UserNames, directory: Directory) -> None:
    assert names.of(7) == "7"
    directory.names[7] = "carol"
    assert names.of(7) == "7"
    names._due[7] = 0.0
    assert names.of(7) == "carol"


def test_a_directory_that_does_not_answer_holds_nobody_up(
    names: UserNames, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.answers.clear()
    monkeypatch.setattr(names._directory, "_patience", USUAL_PATIENCE_SECONDS)
    assert [names.of(uid) for uid in (1000, 1001, 1000)] == ["1000", "1001", "1000"]
    until(lambda: directory.asked, "the question")
    assert directory.asked == [1000], "one question at a time"
    directory.answers.set()
    until(lambda: not names._directory._held_up, "the answer")
    monkeypatch.setattr(names._directory, "_patience", PATIENCE_SECONDS)
    assert [names.of(uid) for uid in (1000, 1001)] == ["alice", "bob"]


def test_names_of_this_machine() -> None:
    someone = pwd.getpwall()[0]
    assert known_name(someone.pw_uid) == pwd.getpwuid(someone.pw_uid).pw_name
    assert known_name(2**31 + 5) is None
    assert known_name(2**70) is None


@pytest.mark.parametrize(
    ("name", "told"),
    [("anna", "anna"), ("CORP\\anna b", "CORP\\anna b"), ("a\nb", None), ("x" * 65, None)],
)
def test_a_name_that_is_no_label_is_none(
    name: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = pwd.struct_passwd((name, "x", 1000, 1000, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: entry)
    assert known_name(1000) == told
