"""Change knobs of real loops, and hold what was predicted against what came of it.

    PYTHONPATH=tests python -m prescriptions.matrix [--into FILE] [--record] [NAME ...]

NAME are regular expressions: the chains that have one of them in `family: case`; all, without any.
The sums are written between the markers `<!-- prescriptions: begin -->` and
`<!-- prescriptions: end -->` of the file of --into, each change into measured.csv beside it.
--record keeps what was seen for `test_recorded.py`.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from pathlib import Path

from prescriptions.cases import GROUPS
from prescriptions.changes import Change, faults, save, sums, table, tables
from prescriptions.measure import Pace, measure
from scenarios.cgroups import Unavailable
from scenarios.measure import await_quiet
from support.leftovers import end_with_us
from tables.splice import put, write_csv


def main() -> None:
    """Measure, print, write; ends with 1 if something does not hold that must."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="regular expression")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the tables into it")
    parser.add_argument("--record", action="store_true", help="keep what was seen")
    options = parser.parse_args()
    end_with_us()
    expected = re.compile("|".join(options.names), re.IGNORECASE)
    changes: list[Change] = []
    lost: list[str] = []
    for group in GROUPS:
        chains = [chain for chain in group if expected.search(chain.title)]
        if not chains:
            continue
        await_quiet()
        try:
            for change in measure(chains, Pace()):
                changes.append(change)
                sys.stderr.write(f"{change}\n")
        except (Unavailable, AssertionError) as reason:
            titles = ", ".join(chain.title for chain in chains)
            lost.append(f"Not measured, or not to its end: {titles} ({reason})")
            sys.stderr.write(f"{lost[-1]}\n")
    text = "\n\n".join([tables(changes), *lost])
    sys.stdout.write(f"{table(changes)}\n\n{text}\n")
    if options.record:
        save(changes)
    if options.into:
        put(options.into, {"prescriptions": text})
    if options.into and changes:
        write_csv(options.into.with_name("measured.csv"), table(changes))
    new = sums(change for change in changes if change.is_quiet and not change.is_fitted)
    values = [f"{change}" for change in changes if change.fault]
    sys.exit("\n".join([*faults(new), *values, *lost]) or 0)


if __name__ == "__main__":
    main()
