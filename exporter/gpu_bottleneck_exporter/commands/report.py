"""What `check` reports, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_bottleneck_exporter.jsontext import Document

COMPLETE, WITH_GAPS, NO_GPU = 0, 1, 2
"""Exit statuses."""


class Gap(NamedTuple):
    """Something that is missing, and how to fix it."""

    subject: str
    """A signal, a collector, `gpu 0`, or `GPU metrics`."""
    problem: str
    remedy: str
    where: tuple[str, ...] = ()
    """What does not give it: GPUs, the driver, the host."""

    @property
    def lines(self) -> tuple[str, str]:
        """For people."""
        return f"gap             {self.subject}: {self.problem}", f"  remedy        {self.remedy}"


@dataclass(frozen=True, slots=True)
class Report:
    """Lines for people, the same as fields for programs, and the exit status."""

    lines: tuple[str, ...]
    status: int
    fields: Document = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()

    @property
    def document(self) -> Document:
        """All of it as one JSON document."""
        gaps = [{**gap._asdict(), "where": list(gap.where)} for gap in self.gaps]
        return {"status": self.status, **self.fields, "gaps": gaps}
