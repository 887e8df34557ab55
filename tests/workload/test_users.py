"""Names of users: whose they are, and a directory service that takes its time."""

from __future__ import annotations

import pwd
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.workload import users
from gpu_bottleneck_exporter.workload.users import UserNames, known_name
from support.rows import rows
from support.trees import lay
from support.waiting import PATIENCE_SECONDS, until

ROOT = "27 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
OVERLAY = "812 700 0:52 / / rw,relatime - overlay overlay rw\n"
REST = "28 27 0:21 / /proc rw,relatime - proc proc rw\n"
USUAL_PATIENCE_SECONDS = users._NAME_TIMEOUT_SECONDS


Where = Callable[..., UserNames]


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Where:
    """`first`, `ours`: the mounts; `hosts`: whether we are in the host's PID namespace."""

    def make(first: str | None = ROOT, ours: str = ROOT, hosts: bool | None = True) -> UserNames:  # noqa: FBT001, FBT002
        files = {"self/mountinfo": ours} | ({} if first is None else {"1/mountinfo": first})
        # Recorded files cannot have the inode that tells.
        monkeypatch.setattr(users, "in_hosts_pid_namespace", lambda _: hosts)
        result = UserNames(lay(tmp_path, files), PATIENCE_SECONDS)
        result._look_up = lambda uid: f"user{uid}"
        return result

    return make


def test_names_known_here_are_the_hosts_where_the_root_is_the_hosts(where: Where) -> None:
    result = where(REST + ROOT, ROOT.replace("27 1 ", "527 500 ") + REST)
    assert (result.of(0), result.of(1000)) == ("root", "user1000")


@rows(
    "first, ours, hosts",
    {
        "another root": (ROOT, OVERLAY, True),
        "one above it": (ROOT, ROOT + OVERLAY, True),
        "a folder of it": (ROOT, ROOT.replace(" / / ", " /images/1 / "), True),
        "a PID namespace": (ROOT, ROOT, False),
        "perhaps one": (ROOT, ROOT, None),
        "no process 1": (None, ROOT, True),
        "nothing": ("", "", True),
        "no root": (REST, REST, True),
        "nonsense": ("too short\n", "too short\n", True),
    },
)
def test_names_of_a_container_are_not_believed(
    where: Where,
    first: str | None,
    ours: str,
    hosts: bool | None,  # noqa: FBT001
) -> None:
    result = where(first, ours, hosts)
    assert (result.of(0), result.of(1000)) == ("root", "1000")


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
def names(where: Where, directory: Directory) -> UserNames:
    result = where()
    result._look_up = directory.look_up
    return result


def test_each_user_is_looked_up_once(names: UserNames, directory: Directory) -> None:
    assert [names.of(uid) for uid in (1000, 1000, 7, 7, 0)] == ["alice", "alice", "7", "7", "root"]
    assert directory.asked == [1000, 7]


def test_a_user_without_a_name_is_looked_up_again_later(
    names: UserNames, directory: Directory
) -> None:
    assert names.of(7) == "7"
    directory.names[7] = "carol"
    assert names.of(7) == "7"
    names._due[7] = 0.0
    assert names.of(7) == "carol"


def test_a_directory_that_does_not_answer_holds_up_no_thread(
    names: UserNames, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.answers.clear()
    monkeypatch.setattr(names._directory, "_timeout", USUAL_PATIENCE_SECONDS)
    assert [names.of(uid) for uid in (1000, 1001, 1000)] == ["1000", "1001", "1000"]
    until(lambda: directory.asked, "the question")
    assert directory.asked == [1000], "one question at a time"
    directory.answers.set()
    until(lambda: not names._directory._hung, "the answer")
    monkeypatch.setattr(names._directory, "_timeout", PATIENCE_SECONDS)
    assert [names.of(uid) for uid in (1000, 1001)] == ["alice", "bob"]


def test_names_of_this_machine() -> None:
    someone = pwd.getpwall()[0]
    assert known_name(someone.pw_uid) == pwd.getpwuid(someone.pw_uid).pw_name
    assert known_name(2**31 + 5) is None
    assert known_name(2**70) is None


def test_a_name_that_is_no_label_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, label in (("anna", 1), ("CORP\\anna b", 1), ("a\nb", 0), ("1001", 0), ("x" * 65, 0)):
        entry = pwd.struct_passwd((name, "x", 1000, 1000, "", "/", "/bin/sh"))
        monkeypatch.setattr(pwd, "getpwuid", lambda _, entry=entry: entry)
        assert known_name(1000) == (name if label else None)
