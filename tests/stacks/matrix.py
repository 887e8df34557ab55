"""Measure real loading libraries and print the results as tables in Markdown.

    PYTHONPATH=tests python -m stacks.matrix [--only REGEX] [--quick] [FILE]

How many were right is written between the markers `<!-- stacks: begin -->` and
`<!-- stacks: end -->` of FILE, each case into measured.csv beside it. With --log, results are
logged as they arrive, and --resume continues an interrupted run.
Light cases run some at a time; what is wrong there is measured alone.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from scenarios.cgroups import Unavailable
from scenarios.measure import await_quiet
from stacks.cases import CASES, Case
from stacks.measure import Failed, Found, measured, side_by_side, stages
from stacks.venvs import VenvError
from support.leftovers import end_with_us
from tables.splice import put, write_csv

_TELLING = 0.005
"""Smaller shares are not shown."""
_CASES = {case.title: case for case in CASES}
_BEGAN = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M}"


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one case, as logged."""

    title: str
    busy: str
    found: str
    verdict: str
    """right, wrong, or why it was not measured."""
    run: str
    """When the run that measured it began, UTC."""
    version: str
    """The commit that was measured."""
    at_first: str = ""
    """The first result, if it was wrong and measured again."""

    @property
    def case(self) -> Case:
        """What was measured."""
        return _CASES[self.title]

    @property
    def right(self) -> bool:
        """Whether every GPU waited for what is expected."""
        return self.verdict == "right"

    def __str__(self) -> str:
        mark = "" if self.right else " ✗"
        held_out = "yes" if self.case.held_out else ""
        expected = "; ".join(" or ".join(sorted(one)) or "busy" for one in self.case.expected)
        again = " (measured twice)" if self.at_first else ""
        name, result = f"{self.case.name}{mark}", f"{self.found or self.verdict}{again}"
        return f"| {self.case.family} | {name} | {held_out} | {expected} | {self.busy} | {result} |"


def row(
    case: Case, first: list[Found] | None = None, *, hog: bool = False, verbose: bool = False
) -> Row:
    """Measure `case`; `first` is what was found beside others."""
    try:
        found, at_first = measured(case, first, hog=hog)
    except Failed as reason:
        return _row(case, verdict=f"did not run: {reason}")
    except (Unavailable, VenvError) as reason:
        return _row(case, verdict=f"not had: {reason}")
    if verbose:
        for one in found:
            sys.stderr.write(f"    {one.feeders}\n")
    wrong = any(one.right is False for one in found)
    unknown = any(one.right is None for one in found)
    return _row(case, found, at_first, "wrong" if wrong else "not judged" if unknown else "right")


def table(rows: Sequence[Row]) -> str:
    """What came of each case."""
    head = "| family | case | held out | waits for | busy | found |"
    rule = "| --- | --- | --- | --- | ---: | --- |"
    return "\n".join([head, rule, *map(str, rows)])


def origin(rows: Sequence[Row]) -> str:
    """When `rows` were measured, which version, and in how many runs."""
    first, *later = sorted({one.run for one in rows}) or ["never"]
    resumed = f", interrupted, resumed on {', '.join(later)}" if later else ", in one run"
    versions = " and ".join(sorted({one.version for one in rows}))
    return f"Measured on {first} UTC{resumed}. Version: {versions}."


def summary(rows: Sequence[Row]) -> str:
    """What was measured, and how much was right: in total, and where not all was."""
    staged = [one for one in rows if not one.verdict.startswith("not had")]
    lines = [
        "| family, if one was wrong | right | tuned on | held out |",
        "| --- | ---: | ---: | ---: |",
    ]
    for family in dict.fromkeys(one.case.family for one in staged):
        of_family = [one for one in staged if one.case.family == family]
        if not all(one.right for one in of_family):
            lines.append(_count(family, of_family))
    single = [one for one in staged if one.case.single_process]
    lines += [_count("**one process on one GPU**", single), _count("**all**", staged)]
    return "\n".join([origin(rows), "", *lines])


def main() -> None:
    """Measure, print, write."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    options = _options()
    end_with_us()
    cases = [
        case
        for case in CASES
        if re.search(options.only, case.title, re.IGNORECASE)
        and (case.quick or not options.quick)
        and options.held_out in {None, case.held_out}
    ]
    known = _known(options.log) if options.resume and options.log else {}
    left = [case for case in cases if case.title not in known]
    hog = options.beside_a_hog
    for some in [(case,) for case in left] if hog else stages(left):
        await_quiet()
        for case, first in zip(some, side_by_side(some), strict=True):
            known[case.title] = result = row(case, first, hog=hog, verbose=options.verbose)
            _keep(options.log, result)
            sys.stderr.write(f"{result}\n")
    rows = [known[case.title] for case in cases]
    sys.stdout.write(f"{table(rows)}\n\n{summary(rows)}\n")
    if options.file:
        put(options.file, {"stacks": summary(rows)})
        write_csv(options.file.with_name("measured.csv"), table(rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", help="regular expression: `family: case`")
    parser.add_argument("--quick", action="store_true", help="those that CI measures")
    share = parser.add_mutually_exclusive_group()
    share.add_argument(
        "--tuned", dest="held_out", action="store_const", const=False, help="those to tune on"
    )
    share.add_argument("--held-out", action="store_const", const=True, help="the other third")
    parser.add_argument("--beside-a-hog", action="store_true", help="beside one that burns a core")
    parser.add_argument("--verbose", action="store_true", help="also the feeders, to stderr")
    parser.add_argument("--log", type=Path, help="keep results in this file as they come")
    parser.add_argument("--resume", action="store_true", help="do not measure what is in the log")
    return parser.parse_args()


def _row(
    case: Case,
    found: Iterable[Found] = (),
    at_first: Iterable[Found] | None = None,
    verdict: str = "",
) -> Row:
    return Row(
        title=case.title,
        busy="; ".join(f"{one.busy:.0%}" for one in found),
        found=_told(found),
        verdict=" ".join(verdict.replace("|", "/").split()),
        run=_BEGAN,
        version=_version(),
        at_first=_told(at_first or ()),
    )


def _told(found: Iterable[Found]) -> str:
    return "; ".join(_shares(one) for one in found)


def _shares(found: Found) -> str:
    if not found.expected and found.right:
        return "busy"
    told = [f"{label} {share:.0%}" for label, share in found.shares.items() if share > _TELLING]
    return ", ".join(told) or "never idle"


def _count(name: str, rows: Sequence[Row]) -> str:
    tuned = [one for one in rows if not one.case.held_out]
    held_out = [one for one in rows if one.case.held_out]
    return f"| {name} | {' | '.join(map(_share, (rows, tuned, held_out)))} |"


def _share(rows: Sequence[Row]) -> str:
    right = sum(one.right for one in rows)
    return f"{right} of {len(rows)} ({right / len(rows):.0%})" if rows else ""


def _version() -> str:
    """The commit that lies here, with `-dirty` if files differ from it."""
    git = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        told = subprocess.run(
            git, cwd=Path(__file__).parent, check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()


def _known(log: Path) -> dict[str, Row]:
    if not log.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in log.read_text().splitlines()]
    return {one.title: one for one in rows}


def _keep(log: Path | None, result: Row) -> None:
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
