"""Files that tests fetch from package registries: once, then kept in the virtual environment."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.tools import missing, require

_CACHE = Path(sys.prefix) / "fetched"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def header(package: str, version: str | None) -> Path:
    """NVIDIA's nvml.h from wheel `package`, of `version` or the newest."""
    requirement = f"{package}=={version}" if version else package

    def fetch(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as wheels:
            _pip("download", "--no-deps", "--only-binary=:all:", "-d", wheels, requirement)
            with zipfile.ZipFile(next(Path(wheels).iterdir())) as wheel:
                name = next(name for name in wheel.namelist() if name.endswith("/nvml.h"))
                (folder / "nvml.h").write_bytes(wheel.read(name))

    return _once(requirement, fetch) / "nvml.h"


def package(requirement: str) -> Path:
    """A folder into which pip has installed only `requirement`."""
    return _once(
        requirement,
        lambda folder: _pip("install", "--no-deps", "--target", f"{folder}", requirement),
    )


def nvidia_library() -> Path:
    """The libnvidia-ml.so.1 of Debian's non-free."""
    return next(_unpacked("libnvidia-ml1", "non-free").rglob("libnvidia-ml.so.1"))


def kernel(debian_package: str) -> Path:
    """The newest kernel image of this machine's release, by the package that depends on it."""
    return next(_unpacked(debian_package, "main", depended=True).glob("boot/vmlinuz-*"))


def _unpacked(name: str, component: str, *, depended: bool = False) -> Path:
    """A Debian package, or its first dependency: unpacked, not installed."""
    require("apt-get", "apt")
    release = Path("/etc/os-release").read_text()
    if "\nID=debian" not in f"\n{release}":
        missing("it is taken from a package of Debian: no Debian here")
    suite = release.partition("VERSION_CODENAME=")[2].partition("\n")[0]

    def fetch(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as home:
            index = Path(home)
            _index(index, suite, component)
            archive = _download(index, name)
            if depended:
                needed = _run(["dpkg-deb", "--field", f"{archive}", "Depends"]).split()[0]
                archive = _download(index, needed)
            _run(["dpkg-deb", "--extract", f"{archive}", f"{folder}"])

    return _once(f"{name} {suite}", fetch)


def _index(folder: Path, suite: str, component: str) -> None:
    """A separate package index, from the mirror that this machine uses."""
    targets = ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) ", "Created-By: Packages"]
    result = _run(targets).splitlines()
    mirror = next(line.split()[0] for line in result if f" {suite} " in line)
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    (folder / "sources.list").write_text(f"deb {signed}{mirror} {suite} {component}\n")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    _apt(folder, "update")


def _download(index: Path, name: str) -> Path:
    _apt(index, "download", name)
    return next(index.glob(f"{name}_*.deb"))


def _apt(index: Path, *command: str) -> None:
    """Run apt-get on `index` only, from within it."""
    options = (
        f"Dir::Etc::SourceList={index / 'sources.list'}",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={index / 'lists'}",
        f"Dir::Cache={index / 'cache'}",
        "APT::Sandbox::User=root",
        "Acquire::Retries=3",
    )
    _run(["apt-get", "-qq", *(f"--option={option}" for option in options), *command], index)


def _pip(*command: str) -> None:
    _run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *command])


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if "Unable to locate package" in done.stderr:
        pytest.skip(f"Debian has it no more: {command[-1]}")
    if done.returncode != 0:
        missing(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _once(name: str, fetch: Callable[[Path], None]) -> Path:
    """The folder that `fetch` has filled, now or in an earlier run; only one process fetches."""
    folder = _CACHE / name.replace(" ", "-").replace("/", "-")
    _CACHE.mkdir(exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=_CACHE) as half:
                begun = Path(half) / "begun"
                begun.mkdir()
                fetch(begun)
                begun.rename(folder)
    return folder
