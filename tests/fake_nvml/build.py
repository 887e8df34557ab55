"""Builds the stand-in for the driver's library from the C files beside this one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from fake_nvml.c_header import c_header

SONAME = "libnvidia-ml.so.1"
_SOURCES = Path(__file__).parent
_FLAGS = ("-std=c11", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")


def build(folder: Path, branch: int = 580) -> Path:
    """Compile `libnvidia-ml.so.1` into `folder`, with the symbols driver `branch` has."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler to build the fake NVML: apt-get install gcc libc6-dev")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "board.h").write_text(c_header())
    library = folder / SONAME
    command = [compiler, "-shared", *_FLAGS, "-pthread", f"-Wl,-soname,{SONAME}"]
    command += [f"-DDRIVER_BRANCH={branch}", f"-I{folder}", f"-I{_SOURCES}", "-o", str(library)]
    command += [str(source) for source in sorted(_SOURCES.glob("*.c"))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"the fake NVML does not compile:\n{result.stderr}")
    return library


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]))}\n")
