"""Run all scenarios and print what was found as a table in Markdown.

    PYTHONPATH=tests python -m scenarios.matrix [--only PATTERN] [--verbose] [--write]

It shows what idle time was charged to, and which alerts fired. With --write, it is also written
into measured.csv beside this module.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from scenarios.alerts import listening
from scenarios.cases import CASES, Case, stages
from scenarios.cgroups import Unavailable
from scenarios.diagnoses import Diagnosis
from scenarios.measure import Measured, await_quiet, measure
from tables.splice import write_csv

_HEAD = ("case", "waits for", "busy", "found", "alerts", "fired", "primary cause")


def row(case: Case, found: Measured) -> str:
    """Result of one expectation; a failure is marked."""
    expected, heard = found.expected, found.heard
    mark = "" if found.right and found.alerts_right else " ✗"
    cells = [
        (f"{case.name}: {expected.title}" if expected.title else case.name) + mark,
        " or ".join(sorted(expected.waiting_on)) or "busy",
        f"{found.busy:.0%}",
        found.told,
        _alerts(expected.alerts, " or "),
        _alerts(heard.fired, ", ") if heard else "not asked",
        heard.primary if heard else "not asked",
    ]
    return f"| {' | '.join(cell or 'none' for cell in cells)} |"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regular expression: cases of that name")
    parser.add_argument("--verbose", action="store_true", help="also the feeders, to stderr")
    parser.add_argument("--write", action="store_true", help="into measured.csv, too")
    options = parser.parse_args()
    rows = [f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}"]
    try:
        with tempfile.TemporaryDirectory() as home, listening(Path(home)) as listener:
            for stage in stages([case for case in CASES if re.search(options.only, case.name)]):
                await_quiet()
                with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
                    results = measure(stage, Path(folder), listener)
                for case, of_case in zip(stage, results, strict=True):
                    rows += [row(case, result) for result in of_case]
                    wrong = any(not (item.right and item.alerts_right) for item in of_case)
                    printed = of_case if wrong or options.verbose else ()
                    sys.stderr.write("\n".join([*map(str, printed), *rows[-len(of_case) :], ""]))
    except (Unavailable, pytest.skip.Exception) as reason:
        raise SystemExit(f"{reason}") from None
    table = "\n".join(rows)
    sys.stdout.write(f"{table}\n")
    if options.write:
        write_csv(Path(__file__).with_name("measured.csv"), table)


def _alerts(diagnoses: Iterable[Diagnosis], joint: str) -> str:
    return joint.join(sorted({diagnosis.alert for diagnosis in diagnoses}))


if __name__ == "__main__":
    main()
