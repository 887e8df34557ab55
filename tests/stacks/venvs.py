"""The suite's virtual environments: built on first use, and kept.

They lie in `.stacks/` at the top of the project, or in $STACKS_HOME.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HOME = Path(os.environ.get("STACKS_HOME") or Path(__file__).parents[2] / ".stacks")
TORCH = "torch==2.13.0"
"""The CPU build. Install it before whatever needs torch, or pip brings the CUDA build."""

VENVS: dict[str, Sequence[Sequence[str]]] = {
    "light": [
        [
            *("requests>=2.32", "urllib3>=2", "httpx>=0.28", "aiohttp>=3.10", "fsspec>=2025.1"),
            *("grpcio>=1.60", "trustme>=1.2", "uvicorn>=0.30", "starlette>=0.40"),
            *("gunicorn>=23", "pyzmq>=26", "redis>=5", "mfusepy>=3.1", "numpy>=1.26"),
        ]
    ],
    "services": [
        [
            *("fastapi>=0.115", "uvicorn>=0.30", "paho-mqtt>=2", "confluent-kafka>=2.5"),
            *("aioquic>=1.2", "trustme>=1.2", "numpy>=1.26"),
        ]
    ],
    "files": [["pyarrow>=17", "h5py>=3.11", "lmdb>=1.5", "numpy>=1.26"]],
    "s3": [["s3fs[boto3]>=2025.7", "moto[server]>=5", "pyarrow>=17"]],
    "notebook": [["ipykernel>=6.29", "jupyter_client>=8"]],
    "torch": [[TORCH, "numpy>=1.26", "requests>=2.32"]],
    "lightning": [[TORCH, "numpy>=1.26"], [TORCH, "lightning>=2.5"]],
    "streaming": [
        [TORCH, "numpy>=1.26"],
        [TORCH, "webdataset>=1", "datasets>=4", "litdata>=0.2.50", "boto3>=1.35"],
        [TORCH, "pillow>=11", "opencv-python-headless>=4.10"],
        [TORCH, "aiohttp>=3.10", "requests>=2.32", "transformers>=4.50"],
        # It works with newer versions of what it pins.
        ["--no-deps", "mosaicml-streaming>=0.11"],
        [TORCH, "Brotli", "catalogue", "python-snappy", "xxhash", "zstd", "fsspec", "tqdm"],
    ],
    "tensorflow": [["tensorflow-cpu>=2.18"]],
    "jax": [["jax>=0.5", "grain>=0.2.5", "requests>=2.32"]],
    "ray": [["ray[data]>=2.40", "requests>=2.32"]],
}
"""By name: the arguments of `pip install`, one call after the other."""


class VenvError(Exception):
    """The build failed; the message is the command to try by hand."""


def python(name: str) -> Path:
    """The interpreter of venv `name`, which is built if missing or out of date.

    Raises VenvError.
    """
    folder = HOME / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = folder / ".built"
        wanted = "\n".join(" ".join(step) for step in VENVS[name])
        if not built.exists() or built.read_text() != wanted:
            _build(folder, VENVS[name])
            built.write_text(wanted)
    return folder / "bin" / "python"


def _build(folder: Path, steps: Sequence[Sequence[str]]) -> None:
    sys.stderr.write(f"building {folder}\n")
    _run([sys.executable, "-m", "venv", f"{folder}"])
    for step in steps:
        pip = [f"{folder / 'bin' / 'pip'}", "install", "-q", "--prefer-binary"]
        _run(["nice", "-n", "10", *pip, *step])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise VenvError(f"{done.stdout[-2000:]}\nit failed, try by hand: {' '.join(command)}")
