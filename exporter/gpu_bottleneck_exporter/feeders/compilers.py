"""Programs that compile kernels: who waits for them starts up, and no more of them load data."""

from __future__ import annotations

import re

_POOLS = ("torch/_inductor/compile_worker", "torch._inductor.compile_worker")
"""Where the command line says that the interpreter runs a pool of them (torch.compile)."""
_NAMES = re.compile(
    r"(?:[a-z0-9_]+-)*"  # of another machine: x86_64-linux-gnu-
    r"(?:gcc|g\+\+|cc|c\+\+|cc1|cc1plus|collect2|as|ld|ld\.(?:bfd|gold|lld)|lld|lto1|lto-wrapper"
    r"|clang|clang\+\+|llc|opt|nvcc|cicc|ptxas|fatbinary|cudafe\+\+|nvlink|hipcc|ninja|triton)"
    r"(?:-[0-9.]+)?"
)
"""GNU, LLVM, CUDA and ROCm."""


def is_compiler(name: str) -> bool:
    """Whether a program of this `name` compiles."""
    return _NAMES.fullmatch(name) is not None


def compiles(command: str) -> bool:
    """Whether a process with this command line, as in /proc, compiles or runs a pool that does."""
    program = command.partition("\0")[0].rpartition("/")[2]
    return is_compiler(program) or any(pool in command for pool in _POOLS)
