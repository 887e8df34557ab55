"""Measure real loading libraries and print the results as tables in Markdown.

    PYTHONPATH=tests python -m stacks.matrix [--only REGEX] [--quick] [FILE]

How many were right is written between the markers `<!-- stacks: begin -->` and
`<!-- stacks: end -->` of FILE, each case into measured.csv beside it.
Light cases run some at a time; what is wrong is measured once more, alone.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from scenarios.cgroups import Unavailable
from scenarios.measure import Watched, await_quiet
from stacks.cases import CASES, Case
from stacks.measure import measure, side_by_side, stages
from stacks.venvs import VenvError
from support.judging import LONGEST_SECONDS
from support.leftovers import end_with_us
from tables.splice import put, write_csv

_TWICE = " (measured twice)"
_AGAIN_SECONDS = 3 * LONGEST_SECONDS
"""For what was not right, or not sure, within the time that tests have."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one case."""

    case: Case
    verdict: str
    """right, wrong, not judged, or why it was not measured."""
    busy: str = ""
    found: str = ""

    @property
    def right(self) -> bool:
        """Whether every GPU waited for what is expected."""
        return self.verdict == "right"

    def __str__(self) -> str:
        mark = "" if self.right else " ✗"
        held_out = "yes" if self.case.held_out else ""
        expected = "; ".join(" or ".join(sorted(one)) or "busy" for one in self.case.expected)
        cells = (held_out, expected, self.busy, self.found or self.verdict)
        return f"| {self.case.family} | {self.case.name}{mark} | {' | '.join(cells)} |"


def row(case: Case, found: list[Watched] | None, *, hog: bool, verbose: bool) -> Row:
    """Measure `case`, at first or again if what was `found` beside others is not right."""
    again = ""
    try:
        found = found or measure(case, hog=hog)[0]
        if not all(one.right for one in found):
            again = _TWICE
            found = measure(case, hog=hog, longest_seconds=_AGAIN_SECONDS)[0]
    except (AssertionError, Unavailable, VenvError) as reason:
        kind = "did not run" if isinstance(reason, AssertionError) else "not had"
        return Row(case, " ".join(f"{kind}: {reason}".replace("|", "/").split()))
    if verbose:
        sys.stderr.write("".join(f"    {one}\n" for one in found))
    right = [one.right for one in found]
    verdict = "wrong" if False in right else "not judged" if None in right else "right"
    busy = "; ".join(f"{one.busy:.0%}" for one in found)
    return Row(case, verdict, busy, "; ".join(one.told for one in found) + again)


def table(rows: Sequence[Row]) -> str:
    """What came of each case."""
    head = "| family | case | held out | waits for | busy | found |"
    rule = "| --- | --- | --- | --- | ---: | --- |"
    return "\n".join([head, rule, *map(str, rows)])


def summary(rows: Sequence[Row]) -> str:
    """How much was right of what was measured: in total, and where not all was."""
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
    return "\n".join(
        [*lines, _count("**one process on one GPU**", single), _count("**all**", staged)]
    )


def main() -> None:
    """Measure, print, write."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    options = _options()
    began, hog = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M}", options.beside_a_hog
    end_with_us()
    cases = [
        case
        for case in CASES
        if re.search(options.only, case.title, re.IGNORECASE)
        and (case.quick or not options.quick)
        and options.held_out in {None, case.held_out}
    ]
    known: dict[Case, Row] = {}
    for some in [(case,) for case in cases] if hog else stages(cases):
        await_quiet()
        for case, first in zip(some, side_by_side(some), strict=True):
            known[case] = row(case, first, hog=hog, verbose=options.verbose)
            sys.stderr.write(f"{known[case]}\n")
    rows = [known[case] for case in cases]
    told = f"Measured on {began} UTC. Version: {_version()}.\n\n{summary(rows)}"
    sys.stdout.write(f"{table(rows)}\n\n{told}\n")
    if options.file:
        put(options.file, {"stacks": told})
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
    return parser.parse_args()


def _count(name: str, rows: Sequence[Row]) -> str:
    tuned = [one for one in rows if not one.case.held_out]
    held_out = [one for one in rows if one.case.held_out]
    return f"| {name} | {' | '.join(map(_share, (rows, tuned, held_out)))} |"


def _share(rows: Sequence[Row]) -> str:
    right = sum(one.right for one in rows)
    return f"{right} of {len(rows)} ({right / len(rows):.0%})" if rows else ""


def _version() -> str:
    """The commit that lies here, with `-dirty` if files differ from it."""
    git = ("git", "describe", "--always", "--dirty", "--exclude", "*")
    home = Path(__file__).parent
    told = subprocess.run(git, cwd=home, check=False, capture_output=True, text=True)
    return told.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
