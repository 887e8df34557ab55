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
    """The innermost function if it is a library's: `torch.stack`."""
    role: str
    """`Role` of the process that ran it."""
    waiting_on: str = ""
    seconds: float
    ratio: Ratio
    """Share of the idle time."""
    lock_ratio: Ratio
    """Share of samples in a wait for another thread or process."""
    native_ratio: Ratio
    """Share of samples in native code that it called."""


@dataclass(frozen=True, slots=True)
class IdleLines:
    """Idle time of a GPU by line."""

    seconds: float = 0.0
    """Idle time during sampling."""
    looks: int = 0
    lines: tuple[CodeLine, ...] = ()
    """Awaited lines, the longest first."""
    waits: tuple[CodeLine, ...] = ()
    """Lines of the mains; others than `lines` if those are of workers."""
    trouble: str | None = None
    """Reason for unreadable stacks."""
    looking: bool = False
    """Whether sampling is in progress."""
    age_seconds: float = 0.0
    """Time since the last sample."""


class Findings(NamedTuple):
    """Lines of a GPU and its holders in that time."""

    lines: IdleLines
    mains: frozenset[Started]
