"""How good the predictions are: the tables, and what must hold of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mean

from prescriptions.rows import FITTED_ON, MUCH, NOTHING, Check, Row

MEAN_ERROR, INSIDE = 0.03, 0.85
"""What must hold of the two-sided predictions that nothing was fitted on and no other program
disturbed, as shares: at most this of the time, at least that of them; and of the bounds, so many
must not be exceeded."""


def tables(rows: Sequence[Row], found: Sequence[Check]) -> str:
    """All there is to show, but for the pairs."""
    disturbed = len(rows) - len(_undisturbed(rows))
    most = max((one.strangers for one in rows), default=0.0)
    reasons = Counter(one.refused or NOTHING for one in rows if one.said is None)
    shown = [
        _table("predictions", *_COLUMNS, lines=_sums(rows)),
        _table("refused", "pairs", lines=[f"| {it} | {n} |" for it, n in reasons.most_common()]),
        (
            f"{FITTED_ON.strip()} The interval was fitted on this one, among others.\n"
            f"† Other programs used more than {MUCH:g} cores meanwhile: {disturbed} of {len(rows)} "
            f"pairs; at most {most:.1f} cores."
        ),
        _table("family | case", "busy", "prescribed", lines=map(str, found)),
    ]
    return "\n\n".join(filter(None, shown))


def pairs(rows: Sequence[Row]) -> str:
    """Every one of them; empty without any."""
    return _table("family | case | change", *_OUTCOME, lines=map(str, rows))


_COLUMNS = (
    *("pairs", "refused", "two-sided", "mean error, points", "mean width, points", "inside"),
    *("upper bounds", "mean error, points", "not exceeded", "useful"),
)
_OUTCOME = ("before", "predicted", "after", "error", "exporter's own")


def _table(first: str, *columns: str, lines: Iterable[str]) -> str:
    """Empty without lines; `first`: columns of words."""
    found = list(lines)
    rule = ["---"] * len(first.split("|")) + ["---:"] * len(columns)
    head = [f"| {' | '.join((first, *columns))} |", f"| {' | '.join(rule)} |"]
    return "\n".join([*head, *found]) if found else ""


def _sums(rows: Sequence[Row]) -> list[str]:
    """Of all, of what is new to the model, and of what no other program disturbed."""
    fresh = [one for one in rows if not one.fitted]
    return [
        _sum("**all**", rows),
        _sum("**nothing fitted on them**", fresh),
        _sum("**of these, undisturbed**", _undisturbed(fresh)),
    ]


def _undisturbed(rows: Iterable[Row]) -> list[Row]:
    return [one for one in rows if one.strangers <= MUCH]


def _sum(name: str, rows: Sequence[Row]) -> str:
    exact, bounds = exact_ones(rows), upper_bounds(rows)
    cells = (
        *(name, f"{len(rows)}", f"{sum(one.said is None for one in rows)}"),
        *(
            f"{len(exact)}",
            _points(one.error for one in exact),
            _points(one.width for one in exact),
        ),
        _percent(one.inside for one in exact),
        *(f"{len(bounds)}", _points(one.error for one in bounds)),
        *(_percent(one.kept for one in bounds), _percent(one.useful for one in bounds)),
    )
    return f"| {' | '.join(cells)} |"


def exact_ones(rows: Iterable[Row]) -> list[Row]:
    """Those with a two-sided prediction, and an outcome."""
    return [one for one in rows if one.error is not None and not one.at_most]


def upper_bounds(rows: Iterable[Row]) -> list[Row]:
    """Those of which only a bound was told, and an outcome."""
    return [one for one in rows if one.error is not None and one.at_most]


def wrong(rows: Iterable[Row], found: Iterable[Check]) -> list[str]:
    """What does not hold that must."""
    fresh = _undisturbed(one for one in rows if not one.fitted)
    exact, bounds = exact_ones(fresh), upper_bounds(fresh)
    faults = [f"prescribed for {one.title}: {one.said}" for one in found if one.wrong]
    if exact and mean(abs(one.error or 0.0) for one in exact) > MEAN_ERROR:
        faults.append(f"the mean error is {_points(one.error for one in exact)} points")
    if exact and mean(one.inside for one in exact) < INSIDE:
        faults.append(f"{_percent(one.inside for one in exact)} lie in their interval")
    if bounds and mean(one.kept for one in bounds) < INSIDE:
        faults.append(f"{_percent(one.kept for one in bounds)} of the bounds are not exceeded")
    return faults


def _points(shares: Iterable[float | None]) -> str:
    known = [abs(share) for share in shares if share is not None]
    return f"{100 * mean(known):.1f}" if known else ""


def _percent(held: Iterable[bool]) -> str:
    known = list(held)
    return f"{mean(known):.0%}" if known else ""
