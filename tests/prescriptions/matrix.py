"""Change knobs of real loops, and hold what was predicted against what came of it.

    PYTHONPATH=tests python -m prescriptions.matrix [--into FILE] [--record] [NAME ...]

NAME are regular expressions: the chains that have one of them in `family: case`; all, without any.
The sums are written between the markers `<!-- prescriptions: begin -->` and
`<!-- prescriptions: end -->` of the file of --into, each pair into measured.csv beside it.
--record keeps what was seen for `test_recorded.py`.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prescriptions.cases import CHAINS, GROUPS
from prescriptions.measure import Glance, Pace, Pair, measure
from prescriptions.recorded import Change, save
from prescriptions.rows import Check, Row, checks
from prescriptions.settings import Chain
from prescriptions.table import pairs, tables, wrong
from scenarios.cgroups import Unavailable
from scenarios.measure import await_quiet
from support.leftovers import end_with_us
from tables.splice import put, write_csv


def main() -> None:
    """Measure, print, write; ends with 1 if something does not hold that must."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    options = _options()
    end_with_us()
    wanted = [chain for chain in CHAINS if _is_wanted(chain, options.names)]
    if options.list:
        sys.stdout.writelines(f"{chain.title} ({chain.pairs})\n" for chain in wanted)
        return
    rows: list[Row] = []
    found: list[Check] = []
    changes: list[Change] = []
    lost: list[str] = []
    for group in GROUPS:
        chains = [chain for chain in group if chain in wanted]
        if not chains:
            continue
        await_quiet()
        try:
            for one in measure(chains, Pace()):
                _note(one, rows, found)
                changes += recorded(one)
        except (Unavailable, AssertionError) as reason:
            titles = ", ".join(chain.title for chain in chains)
            lost.append(f"Not measured, or not to its end: {titles} ({reason})")
            _tell(lost[-1])
    text = "\n\n".join([tables(rows, found), *lost])
    sys.stdout.write(f"{pairs(rows)}\n\n{text}\n")
    if options.record:
        save(changes)
    if options.into:
        put(options.into, {"prescriptions": text})
    if options.into and rows:
        write_csv(options.into.with_name("measured.csv"), pairs(rows))
    faults = [*wrong(rows, found), *lost]
    sys.exit("\n".join(faults) or 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="regular expression")
    parser.add_argument("--list", action="store_true", help="name the chains, and do nothing")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the tables into it")
    parser.add_argument("--record", action="store_true", help="keep what was seen")
    return parser.parse_args()


def _is_wanted(chain: Chain, names: Sequence[str]) -> bool:
    return not names or any(re.search(name, chain.title, re.IGNORECASE) for name in names)


def recorded(one: Pair | Glance) -> list[Change]:
    """What is kept of a change that came about."""
    if not isinstance(one, Pair) or one.value is None or one.after is None:
        return []
    chain, seen = one.chain, one.before.outlook.seen
    strangers = max(one.before.strangers, one.after.strangers)
    busy = one.after.busy
    if seen is None:
        return []
    if chain.first.together:  # nobody waits for the others
        seen = replace(seen, slack=None)
    return [Change(chain.family, chain.name, chain.knob, one.value, seen, busy, strangers)]


def _note(one: Pair | Glance, rows: list[Row], found: list[Check]) -> None:
    if isinstance(one, Pair):
        rows.append(Row(one))
        _tell(f"{rows[-1]}")
    seen = checks(one)
    found += seen
    for check in seen:
        _tell(f"{check}")


def _tell(what: str) -> None:
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
