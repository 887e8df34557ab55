"""Schema of the lines of code that a GPU waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from gpu_bottleneck_exporter.host.process import Started

Ratio = Annotated[float, (0.0, 1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """Idle time attributed to one line of code."""

    file: str
    line: int
    function: str
    called: str = ""
    """The innermost function if it is a library's, such as `torch.stack`; else empty."""
    role: str
    """`Role` of the process that ran it."""
    waiting_on: str = ""
    seconds: float
    ratio: Ratio
    """Share of the idle time."""
    lock_ratio: Ratio
    """Share of its samples in which it waited for another thread or process."""
    native_ratio: Ratio
    """Share of its samples in which native code ran that it had called."""


@dataclass(frozen=True, slots=True)
class IdleLines:
    """Idle time of a GPU by line, from stack samples of its feeders."""

    seconds: float = 0.0
    """Idle time during sampling."""
    looks: int = 0
    lines: tuple[CodeLine, ...] = ()
    """Lines that the GPU waited for, the longest first."""
    waits: tuple[CodeLine, ...] = ()
    """Lines of the mains in that time; they differ from `lines` if those are of workers."""
    trouble: str | None = None
    """Reason for which stacks, or some of them, could not be read."""
    looking: bool = False
    """Whether sampling is in progress."""
    age_seconds: float = 0.0
    """Time since the last sample."""


class Findings(NamedTuple):
    """The lines of one GPU while the same processes held it."""

    lines: IdleLines
    mains: frozenset[Started]
    """All processes that held the GPU in that time."""
