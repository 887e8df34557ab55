"""Run all scenarios and print the results as two confusion matrices in Markdown.

    PYTHONPATH=tests python -m scenarios.matrix [--only PATTERN] [--verbose] [--write]

One shows what idle time was charged to, the other which alerts fired. With --write, they are also
written into measured.csv and alerts.csv beside this module.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from scenarios.alerts import Heard, listening
from scenarios.cases import CASES, Case, Diagnosis, Expected, stages
from scenarios.cgroups import Unavailable
from scenarios.measure import Measured, await_quiet, measure
from tables.splice import write_csv

CAUSES, ALERTS = "measured.csv", "alerts.csv"
"""The matrices, and their files."""
_WRONG = " ✗"
_NONE = "none"


def row(case: Case, measured: Measured) -> str:
    """One line of the matrix of causes; an accepted cause is bold, a failure marked."""
    cells = [_cell(measured, cause) for cause in WAITING_ON]
    mark = "" if measured.right else _WRONG
    return (
        f"| {_title(case, measured.expected)}{mark} | {measured.busy:.0%} | {' | '.join(cells)} |"
    )


def alert_row(case: Case, heard: Heard) -> str:
    """One line of the matrix of alerts; an expected alert is bold, a failure marked."""
    expected = heard.expected
    mark = _WRONG if heard.wrong else ""
    fired = ", ".join(_fired(diagnosis, expected) for diagnosis in sorted(heard.fired))
    primary = ", ".join(f"`{cause}`" for cause in sorted(heard.primary))
    wanted = " or ".join(diagnosis.alert for diagnosis in sorted(expected.alerts))
    cells = [f"{_title(case, expected)}{mark}", wanted, fired, primary]
    return f"| {' | '.join(cell or _NONE for cell in cells)} |"


def table(rows: Iterable[str]) -> str:
    """The matrix of causes."""
    return _table(["case", "busy", *(f"`{cause}`" for cause in WAITING_ON)], "---:", rows)


def alert_table(rows: Iterable[str]) -> str:
    """The matrix of alerts."""
    return _table(["case", "expected", "fired", "primary cause"], "---", rows)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regular expression: cases of that name")
    parser.add_argument("--verbose", action="store_true", help="also the feeders, to stderr")
    parser.add_argument("--write", action="store_true", help="into CSV files, too")
    options = parser.parse_args()
    cases = [case for case in CASES if re.search(options.only, case.name)]
    try:
        tables = _measured(cases, verbose=options.verbose)
    except pytest.skip.Exception as missing:
        raise SystemExit(f"{missing}") from None
    sys.stdout.write("\n\n".join(tables.values()) + "\n")
    if options.write:
        for name, matrix in tables.items():
            write_csv(Path(__file__).with_name(name), matrix)


def _measured(cases: Sequence[Case], *, verbose: bool) -> dict[str, str]:
    rows: list[str] = []
    alert_rows: list[str] = []
    with tempfile.TemporaryDirectory() as home, listening(Path(home)) as listener:
        for stage in stages(cases):
            try:
                await_quiet()
                with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
                    results = measure(stage, Path(folder), listener)
            except Unavailable as reason:
                _tell(f"{', '.join(case.name for case in stage)}: not measured: {reason}")
                continue
            for case, of_case in zip(stage, results, strict=True):
                for found in of_case:
                    rows.append(row(case, found))
                    right = found.right and found.alerts_right
                    if verbose or not right:
                        _tell(f"{case.name}: {'as expected' if right else 'wrong'}\n  {found}")
                    _tell(rows[-1])
                    if found.heard:
                        alert_rows.append(alert_row(case, found.heard))
                        _tell(alert_rows[-1])
    return {CAUSES: table(rows), ALERTS: alert_table(alert_rows)}


def _tell(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def _title(case: Case, expected: Expected) -> str:
    return f"{case.name}: {expected.title}" if expected.title else case.name


def _table(head: Sequence[str], rule: str, rows: Iterable[str]) -> str:
    rules = ["---", *([rule] * (len(head) - 1))]
    return "\n".join([f"| {' | '.join(head)} |", f"| {' | '.join(rules)} |", *rows])


def _cell(measured: Measured, cause: str) -> str:
    percent = round(100 * measured.shares.get(cause, 0.0))
    if not percent:
        return ""
    return f"**{percent}**" if cause in measured.expected.waiting_on else f"{percent}"


def _fired(diagnosis: Diagnosis, expected: Expected) -> str:
    return f"**{diagnosis.alert}**" if diagnosis in expected.alerts else diagnosis.alert


if __name__ == "__main__":
    main()
