"""The metric contract: what is declared, what is documented and what Prometheus accepts.

Names, kinds and labels are pinned by the golden exposition (`test_golden.py`).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.sampling.collector import Family
from support.offenders import each
from support.states import FixedSampler, mixed_state
from support.tools import require
from tables import metrics

DECLARED = metrics.families()
UNITS = {
    "seconds": r"\b(seconds|Unix time)\b",
    "bytes": r"\bbytes\b",
    "joules": r"\bjoules\b",
    "watts": r"\bwatts\b",
    "celsius": r"\bdegrees Celsius\b",
    "hertz": r"\bhertz\b",
    "ratio": r"\b0-1\b",
}
"""Base units, and how a help text names each."""
REFUSED_WORDS = re.compile(
    "percent|pct|[kmg]i?b|[kmg]hz|[mun]s|[mu]?[wj]|milli.*|micro.*|nano.*|kilo.*|mega.*|giga.*"
)
KEYWORDS = {"and", "bool", "by", "ignoring", "offset", "on", "or", "unless", "without"}
OF_TARGETS = {"host", "hostname", "node", "instance", "job", "pid"}
RESERVED_ENDINGS = ("_bucket", "_count", "_sum", "_created")


def lint(family: Family) -> Iterator[str]:
    """Errors of a family."""
    if not family.name.startswith("gpu_"):
        yield "no prefix gpu_"
    for name in (family.name, *family.labels):
        if not re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
            yield f"{name!r} is not snake case"
        if name in KEYWORDS | OF_TARGETS:
            yield f"{name!r} is a keyword of PromQL or a label of targets"
    for word in family.name.split("_"):
        if REFUSED_WORDS.fullmatch(word):
            yield f"{word!r} is no base unit"
    if family.name.endswith(RESERVED_ENDINGS):
        yield "the ending is reserved"
    if (family.kind == "counter") != family.name.endswith("_total"):
        yield "counters end in _total, others do not"
    yield from lint_unit(family)
    if not re.fullmatch(r"\S.*[^.]\.", family.help):
        yield "the help is no sentence"


def lint_unit(family: Family) -> Iterator[str]:
    stem = family.name.removesuffix("_total")
    unit = next((unit for unit in UNITS if stem.endswith(f"_{unit}")), None)
    if unit and not re.search(UNITS[unit], family.help, re.IGNORECASE):
        yield f"the help does not say {UNITS[unit]!r}"


@each(DECLARED, lambda family: family.name)
def test_every_declared_family_passes_the_lint(family: Family) -> None:
    assert list(lint(family)) == []
    assert sum(item.name == family.name for item in DECLARED) == 1, "it is declared twice"


def test_promtool_accepts_the_exposition() -> None:
    body, _ = Exposition(FixedSampler(mixed_state()), ALL).render()
    command = [require("promtool", "prometheus"), "check", "metrics"]
    result = subprocess.run(command, input=body, capture_output=True, check=False)
    assert (result.returncode, result.stdout + result.stderr) == (0, b"")
