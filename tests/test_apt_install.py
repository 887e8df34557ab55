"""`make` installs packages once another apt has ended, instead of failing beside it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from support.tools import require
from support.waiting import PATIENCE_SECONDS, until

SCRIPT = Path(__file__).parents[1] / ".ci/apt-install"
CONFIGURATION = """\
Dir "{root}/";
Dir::State::status "{root}/var/lib/dpkg/status";
Dir::Bin::methods "/usr/lib/apt/methods";
APT::Sandbox::User "root";
"""
INSTALLED = """\
Package: here
Status: install ok installed
Architecture: all
Maintainer: nobody
Version: 1
Description: already installed
"""
FOLDERS = (
    "etc/apt/apt.conf.d",
    "etc/apt/preferences.d",
    "var/lib/apt/lists/partial",
    "var/cache/apt/archives/partial",
    "var/lib/dpkg",
    "var/log/apt",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system of apt's own, with one package installed and no sources."""
    require("apt-get", "apt")
    if os.geteuid() != 0:
        pytest.skip("only root installs packages")
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").touch()
    (tmp_path / "var/lib/dpkg/status").write_text(INSTALLED)
    (tmp_path / "apt.conf").write_text(CONFIGURATION.format(root=tmp_path))
    return tmp_path


def start(root: Path, package: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [f"{SCRIPT}", package],
        env={"PATH": os.environ["PATH"], "APT_CONFIG": f"{root}/apt.conf", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_waits_while_another_apt_holds_the_lists(root: Path) -> None:
    with (root / "var/lib/apt/lists/lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        with start(root, "here", INSTALL="1") as process:
            until(lambda: sleeps(process.pid), "a pause between two tries")
            assert process.poll() is None
            lock.close()
            assert process.wait(PATIENCE_SECONDS) == 0


def sleeps(pid: int) -> bool:
    return any(child.name() == "sleep" for child in psutil.Process(pid).children())


def test_any_other_error_ends_it_with_what_apt_said(root: Path) -> None:
    with start(root, "nowhere", CI="true") as process:
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode != 0
    assert "Unable to locate package nowhere" in said


def test_unasked_it_names_what_is_missing_and_touches_nothing(root: Path) -> None:
    with start(root, "here") as process:
        assert process.communicate(timeout=PATIENCE_SECONDS) == (
            "missing: apt-get install here\n",
            "",
        )
    assert not (root / "var/lib/apt/lists/lock").exists()
