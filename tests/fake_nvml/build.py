"""Builds the stand-in for the driver's library from the C files beside this one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from fake_nvml.c_header import c_header

SONAME = "libnvidia-ml.so.1"
_SOURCES = Path(__file__).parent
_FLAGS = ("-std=c11", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")


def build(folder: Path, branch: int = 580) -> Path:
    """Compile `libnvidia-ml.so.1` into `folder`, with the symbols driver `branch` has."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "board.h").write_text(c_header())
    flags = (*_FLAGS, "-pthread", f"-DDRIVER_BRANCH={branch}", f"-I{_SOURCES}")
    return compiled("the fake NVML", folder, sorted(_SOURCES.glob("*.c")), flags)


def compiled(what: str, folder: Path, sources: Iterable[Path], flags: Iterable[str]) -> Path:
    """The library of C `sources`, in `folder`, whose headers they may include."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError(f"no C compiler to build {what}: apt-get install gcc libc6-dev")
    library = folder / SONAME
    command = [compiler, "-shared", *flags, f"-Wl,-soname,{SONAME}", f"-I{folder}"]
    command += ["-o", f"{library}", *map(str, sources)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{what} does not compile:\n{result.stderr}")
    return library


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")
