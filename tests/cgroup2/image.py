"""The disk of a small machine: this machine's Python, the package and its tests, at the same paths.

Also the few programs that they call, and the libraries of all of these.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import gpu_bottleneck_exporter
from support.tools import require

TESTS = Path(__file__).parents[1]
PACKAGE = Path(gpu_bottleneck_exporter.__file__).parent
INIT = "/init"
_SIZE = "1G"
_PROGRAMS = ("sh", "env", "mount", "unshare")
_STANDARD = Path(sysconfig.get_path("stdlib"))
_INSTALLED = (
    *("click", "nvidia-ml-py", "prometheus-client", "psutil"),
    *("pytest", "iniconfig", "packaging", "pluggy", "pygments", "pytest-timeout"),
    *("hypothesis", "sortedcontainers"),
)
_LEFT_OUT = shutil.ignore_patterns(
    *("test", "idlelib", "lib2to3", "tkinter", "ensurepip", "config-*", "site-packages"),
    *("dist-packages", "node_modules", "__pycache__", "*.pyc"),
)
_MOUNT_POINTS = ("proc", "sys", "dev", "tmp", "run", "etc")
_LIBRARY = re.compile(r"(/\S+) \(0x")


def make(disk: Path, staging: Path) -> None:
    """Write the image to `disk`; `staging` is an empty folder for what goes into it."""
    for path in _needed():
        _copy(path, staging)
    for name in _MOUNT_POINTS:
        (staging / name).mkdir(exist_ok=True)
    (staging / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    _init(staging / INIT.lstrip("/"))
    tool = require("mkfs.ext4", "e2fsprogs")
    subprocess.run([tool, "-q", "-d", staging, disk, _SIZE], check=True)


def _init(path: Path) -> None:
    """The init program: the kernel finds Python through its first line."""
    script = Path(__file__).with_name("init.py").read_text(encoding="utf-8")
    path.write_text(f"#!{sys.executable}\n{script}", encoding="utf-8")
    path.chmod(0o755)


def _needed() -> Iterator[Path]:
    python = Path(sys.executable)
    programs = [Path(require(name, "dash, coreutils, mount and util-linux")) for name in _PROGRAMS]
    installed = [path for name in _INSTALLED for path in _files(name)]
    modules = [path for path in (*_STANDARD.rglob("*.so"), *installed) if path.suffix == ".so"]
    yield from (python, Path(sys.prefix, "pyvenv.cfg"), _STANDARD)
    yield from installed
    yield from (PACKAGE, TESTS, TESTS.parent / "pyproject.toml")
    yield from programs
    yield from _libraries([python.resolve(), *programs, *modules])


def _files(name: str) -> Iterator[Path]:
    """The files that installing a package has written."""
    for file in metadata.files(name) or ():
        path = Path(file.locate())
        if path.suffix != ".pyc" and path.is_file():
            yield Path(os.path.normpath(path))


def _libraries(files: Iterable[Path]) -> set[Path]:
    """The libraries that the loader finds for `files`, and the loader."""
    done = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False)
    return {Path(result) for result in _LIBRARY.findall(done.stdout)}


def _copy(path: Path, staging: Path) -> None:
    """`path`, and the targets of links on the way to it."""
    target = staging / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, ignore=_LEFT_OUT, dirs_exist_ok=True)
    else:
        shutil.copy(path, target)
