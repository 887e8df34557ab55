"""The lines of code that a GPU waited for, as documents have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from gpu_bottleneck_exporter.host.process import Started

Ratio = Annotated[float, (0.0, 1.0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """Idle time that is charged to a line."""

    file: str
    line: int
    function: str
    called: str = ""
    """The innermost function, if that is one of a library: `torch.stack`; else empty."""
    role: str
    """Of who ran it: `Role`."""
    waiting_on: str = ""
    seconds: float
    ratio: Ratio
    """Share of the idle time."""
    lock_ratio: Ratio
    """Share of its looks in which it waited for another thread or process."""
    native_ratio: Ratio
    """Share of its looks in which native code ran that it had called."""


@dataclass(frozen=True, slots=True)
class IdleLines:
    """What looks at the stacks of a GPU's feeders found."""

    seconds: float = 0.0
    """Idle time meanwhile."""
    looks: int = 0
    lines: tuple[CodeLine, ...] = ()
    """Whose work the GPU waited for, the longest first."""
    waits: tuple[CodeLine, ...] = ()
    """Where mains were meanwhile; others than `lines` if these are of workers."""
    trouble: str | None = None
    """Why stacks, or some of them, could not be read."""
    looking: bool = False
    """Whether somebody looks now."""
    age_seconds: float = 0.0
    """Since the last look."""


class Findings(NamedTuple):
    """The lines of one GPU while the same processes had it."""

    lines: IdleLines
    mains: frozenset[Started]
    """All processes that had the GPU meanwhile."""
