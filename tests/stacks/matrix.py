"""Measure real loading libraries and print the results as a table in Markdown.

    PYTHONPATH=tests python -m stacks.matrix [--only REGEX] [--quick] [FILE ...]

The table is written between the markers `<!-- stacks: begin -->` and `<!-- stacks: end -->` of each
FILE. With --log, results are logged as they arrive, and --resume continues an interrupted run.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scenarios.cgroups import Unavailable
from stacks.cases import CASES, Case
from stacks.measure import Failed, Found, measured
from stacks.venvs import VenvError
from tables.splice import put

_TELLING = 0.005
"""Smaller shares are not shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one case, as logged."""

    case: str
    family: str
    single_process: bool
    expected: str
    busy: str
    found: str
    verdict: str
    """right, wrong, or why it was not measured."""
    at_first: str = ""
    """The first result, if it was wrong and measured again."""

    @property
    def right(self) -> bool:
        """Whether every GPU waited for what is expected."""
        return self.verdict == "right"

    @property
    def staged(self) -> bool:
        """Whether the machine could run it at all."""
        return not self.verdict.startswith("not had")

    def __str__(self) -> str:
        found = self.found or self.verdict
        again = " (measured twice)" if self.at_first else ""
        mark = "" if self.right else " ✗"
        cells = self.family, f"{self.case}{mark}", self.expected, self.busy, f"{found}{again}"
        return f"| {' | '.join(cells)} |"


def row(case: Case, *, hog: bool = False, once: bool = False, verbose: bool = False) -> Row:
    """Measure `case`."""
    try:
        found, at_first = measured(case, hog=hog, once=once)
    except Failed as reason:
        return _row(case, verdict=f"did not run: {reason}")
    except (Unavailable, VenvError) as reason:
        return _row(case, verdict=f"not had: {reason}")
    if verbose:
        for one in found:
            sys.stderr.write(f"    {one.feeders}\n")
    wrong = any(one.wrong for one in found)
    return _row(case, found, at_first, "wrong" if wrong else "right")


def table(rows: Sequence[Row]) -> str:
    """The cases, then how many of each family were right."""
    head = "| family | case | waits for | busy | found |\n| --- | --- | --- | ---: | --- |"
    return "\n".join([head, *map(str, rows), "", summary(rows)])


def summary(rows: Sequence[Row]) -> str:
    """Right and wrong, by family and in total."""
    families: dict[str, list[Row]] = defaultdict(list)
    for one in rows:
        if one.staged:
            families[one.family].append(one)
    staged = [one for one in rows if one.staged]
    lines = ["| family | cases | right |", "| --- | ---: | ---: |"]
    lines += [_count(family, of_family) for family, of_family in families.items()]
    lines.append(
        _count("**one process on one GPU**", [one for one in staged if one.single_process])
    )
    lines.append(_count("**all**", staged))
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    options = _options()
    cases = [
        case
        for case in CASES
        if re.search(options.only, case.title, re.IGNORECASE) and (case.quick or not options.quick)
    ]
    if options.list:
        sys.stdout.writelines(f"{case.title}\n" for case in cases)
        return
    known = _known(options.log) if options.resume and options.log else {}
    rows: list[Row] = []
    for case in cases:
        if case.title not in known:
            known[case.title] = row(
                case, hog=options.beside_a_hog, once=options.once, verbose=options.verbose
            )
            _keep(options.log, known[case.title])
        rows.append(known[case.title])
        sys.stderr.write(f"{rows[-1]}\n")
        sys.stderr.flush()
    text = table(rows)
    sys.stdout.write(f"{text}\n")
    for path in options.files:
        put(path, {"stacks": text})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", help="regular expression: `family: case`")
    parser.add_argument("--quick", action="store_true", help="those that CI measures")
    parser.add_argument("--list", action="store_true", help="name the cases, and do nothing")
    parser.add_argument("--beside-a-hog", action="store_true", help="beside one that burns a core")
    parser.add_argument("--once", action="store_true", help="do not repeat what is wrong")
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
        case=case.name,
        family=case.family,
        single_process=case.single_process,
        expected="; ".join(" or ".join(sorted(one)) or "busy" for one in case.expected),
        busy="; ".join(f"{one.busy:.0%}" for one in found),
        found=_told(found),
        verdict=" ".join(verdict.replace("|", "/").split()),
        at_first=_told(at_first or ()),
    )


def _told(found: Iterable[Found]) -> str:
    return "; ".join(_shares(one) for one in found)


def _shares(found: Found) -> str:
    if not found.expected and not found.wrong:
        return "busy"
    shares = sorted(found.shares.items(), key=lambda item: -item[1])
    told = [f"{label} {share:.0%}" for label, share in shares if share > _TELLING]
    return ", ".join(told) or "never idle"


def _count(name: str, rows: Sequence[Row]) -> str:
    right = sum(one.right for one in rows)
    share = f" ({right / len(rows):.0%})" if rows else ""
    return f"| {name} | {len(rows)} | {right}{share} |"


def _known(log: Path) -> dict[str, Row]:
    if not log.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in log.read_text().splitlines()]
    return {f"{one.family}: {one.case}": one for one in rows}


def _keep(log: Path | None, result: Row) -> None:
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
