"""Run all scenarios and print what was found as a confusion matrix in Markdown.

    PYTHONPATH=tests python -m scenarios.matrix [--only PATTERN] [--verbose] [FILE]

writes it between the markers of FILE, if one is given.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpu_bottleneck_exporter.stall import WAITING_ON
from scenarios.cases import CASES, Case
from scenarios.cgroups import Unavailable
from scenarios.measure import Measured, repeated

BEGIN, END = "<!-- scenarios: begin -->", "<!-- scenarios: end -->"


def row(case: Case, measured: Measured) -> str:
    """One line of the matrix; an accepted cause is bold, a failure marked."""
    title = f"{case.name}: {measured.expected.title}" if measured.expected.title else case.name
    cells = [_cell(measured, cause) for cause in WAITING_ON]
    mark = " ✗" if measured.wrong else ""
    return f"| {title}{mark} | {measured.busy:.0%} | {' | '.join(cells)} |"


def table(rows: Iterable[str]) -> str:
    """The matrix."""
    head = ["case", "busy", *(f"`{cause}`" for cause in WAITING_ON)]
    rule = ["---", *(["---:"] * (len(head) - 1))]
    return "\n".join([f"| {' | '.join(head)} |", f"| {' | '.join(rule)} |", *rows])


def put(path: Path, text: str) -> None:
    """Replace what stands between the markers of `path`."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no {BEGIN} ... {END}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--only", default="", help="regular expression: cases of that name")
    parser.add_argument("--verbose", action="store_true", help="also the feeders, to stderr")
    options = parser.parse_args()
    rows: list[str] = []
    for case in CASES:
        if not re.search(options.only, case.name):
            continue
        try:
            with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
                results = repeated(case, Path(folder), _tell)
        except Unavailable as reason:
            sys.stderr.write(f"{case.name}: not measured: {reason}\n")
            continue
        for measured in results:
            rows.append(row(case, measured))
            if options.verbose or measured.wrong:
                sys.stderr.write(f"{case.name}: {measured.wrong or 'as expected'}\n  {measured}\n")
            sys.stderr.write(f"{rows[-1]}\n")
    sys.stdout.write(table(rows) + "\n")
    if options.file:
        put(options.file, table(rows))


def _tell(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def _cell(measured: Measured, cause: str) -> str:
    percent = round(100 * measured.shares.get(cause, 0.0))
    if not percent:
        return ""
    return f"**{percent}**" if cause in measured.expected.waiting_on else f"{percent}"


if __name__ == "__main__":
    main()
