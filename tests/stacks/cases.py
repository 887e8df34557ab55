"""The cases of `cases.csv`; README.md explains its columns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.accounting.stall import ASLEEP, NETWORK, REQUESTS
from scenarios.cgroups import Limits
from tables.splice import read_csv

TABLE = Path(__file__).with_name("cases.csv")
Labels = frozenset[str]
"""The labels accepted for a GPU; none: it is kept busy."""
WAITING: Labels = frozenset({ASLEEP, NETWORK, REQUESTS})
MEBIBYTE = 2**20
SLOW_DISK = Limits(read_bytes_per_second=16 * MEBIBYTE)


@dataclass(frozen=True, slots=True)
class Case:
    """One loop as people write it."""

    name: str
    family: str
    loop: tuple[str, ...]
    """A module of loops/, and its arguments."""
    expected: tuple[Labels, ...]
    """The accepted labels of each GPU."""
    servers: tuple[str, ...] = ()
    """From servers/servers.yml: remote machines, or clients of the loop."""
    venv: str = "light"
    single_process: bool = True
    """One process tree with one holder, not several ranks or holders."""
    quick: bool = False
    """For CI: cheap to install and to run."""
    limits: Limits | None = None
    programs: tuple[str, ...] = ()
    """That it takes."""
    warm_seconds: float = 3.0
    """Before it is measured."""

    @property
    def title(self) -> str:
        """A unique name."""
        return f"{self.family}: {self.name}"

    @property
    def held_out(self) -> bool:
        """Whether nobody tunes on it: a third are, drawn by title, whatever else there is."""
        return int(hashlib.sha256(self.title.encode()).hexdigest(), 16) % 3 == 0

    @property
    def light(self) -> bool:
        """Whether all that it does is wait, so that others of the kind may run beside it."""
        waits = all(one and one <= WAITING for one in self.expected)
        return waits and self.venv in {"bare", "light"} and self.limits is None


def _case(  # noqa: PLR0913, PLR0917 - the columns
    family: str, name: str, loop: str, waits_for: str, servers: str, venv: str, besides: str
) -> Case:
    words = besides.split(", ")
    return Case(
        name=name,
        family=family,
        loop=tuple(loop.split()),
        expected=tuple(frozenset(gpu.split(" or ")) - {"busy"} for gpu in waits_for.split("; ")),
        servers=tuple(servers.split()),
        venv=venv or "light",
        single_process="several" not in words,
        quick="quick" in words,
        limits=SLOW_DISK if "slow disk" in words else None,
        programs=tuple(word.removeprefix("needs ") for word in words if word.startswith("needs ")),
        warm_seconds=next((float(word[:-2]) for word in words if word.endswith(" s")), 3.0),
    )


CASES = tuple(_case(*cells) for *cells, _why in read_csv(TABLE))
