"""How good the predictions are: the tables, and what must hold of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mean

from prescriptions.rows import MUCH, NOTHING, Check, Row

MEAN_ERROR, INSIDE = 0.04, 0.9
"""What must hold of all predictions: at most this, as a share of the time; at least that."""


def tables(rows: Sequence[Row], found: Sequence[Check]) -> str:
    """All there is to show, but for the pairs."""
    shown = [summary(rows), bounds(rows), refusals(rows), _disturbances(rows), glances(found)]
    return "\n\n".join(filter(None, shown))


def summary(rows: Sequence[Row]) -> str:
    """All, and by what is said."""
    head = ("predictions", "pairs", "predicted", "refused", "mean error, points")
    lines = [f"| {' | '.join((*head, 'mean width, points', 'inside the interval'))} |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    lines.append(_sums("**all**", rows))
    predicted = [one for one in rows if one.said]
    lines.append(_sums("exact ones", [one for one in predicted if not one.at_most]))
    lines.append(_sums("upper bounds", [one for one in predicted if one.at_most]))
    return "\n".join(lines)


def bounds(rows: Sequence[Row]) -> str:
    """What upper bounds were worth."""
    found = [one for one in rows if one.at_most and one.said and one.after is not None]
    right = sum(one.after <= one.said.high for one in found if one.said and one.after is not None)
    useful = sum(one.useful for one in found)
    return (
        f"Of {len(found)} upper bounds {right} were not exceeded, and {useful} were useful: less "
        "than half of the gain too high."
        if found
        else ""
    )


def refusals(rows: Sequence[Row]) -> str:
    """How many, by reason."""
    reasons = Counter(one.refused or NOTHING for one in rows if one.said is None)
    lines = [f"| {reason} | {count} |" for reason, count in reasons.most_common()]
    return "\n".join(["| refused | pairs |\n| --- | ---: |", *lines]) if lines else ""


def pairs(rows: Sequence[Row]) -> str:
    """Every one of them."""
    head = "| family | case | change | before | predicted | after | error | exporter's own |"
    rule = "| --- | --- | --- | ---: | --- | ---: | ---: | ---: |"
    return "\n".join([head, rule, *map(str, rows)])


def _disturbances(rows: Sequence[Row]) -> str:
    disturbed = sum(one.strangers > MUCH for one in rows)
    most = max((one.strangers for one in rows), default=0.0)
    return (
        f"† Other programs used more than {MUCH:g} cores meanwhile: {disturbed} of {len(rows)} "
        f"pairs; at most {most:.1f} cores."
    )


def glances(found: Sequence[Check]) -> str:
    """What was prescribed where something must not be."""
    head = "| family | case | busy | prescribed |\n| --- | --- | ---: | --- |"
    return "\n".join([head, *map(str, found)]) if found else ""


def wrong(rows: Sequence[Row], found: Iterable[Check]) -> list[str]:
    """What does not hold that must."""
    error, share = mean_error(rows), inside(rows)
    faults = [f"prescribed for {one.title}: {one.said}" for one in found if one.wrong]
    if error is not None and error > MEAN_ERROR:
        faults.append(f"the mean error is {100 * error:.1f} points")
    if share is not None and share < INSIDE:
        faults.append(f"{share:.0%} of the outcomes lie in their interval")
    return faults


def mean_error(rows: Iterable[Row]) -> float | None:
    """Mean of the absolute errors; None without a prediction."""
    errors = [abs(one.error) for one in rows if one.error is not None]
    return mean(errors) if errors else None


def mean_width(rows: Iterable[Row]) -> float | None:
    """Mean width of the intervals: wide ones hold any outcome."""
    widths = [one.width for one in rows if one.width is not None]
    return mean(widths) if widths else None


def inside(rows: Iterable[Row]) -> float | None:
    """Share of the outcomes that lie in their interval; None without a prediction."""
    found = [one.inside for one in rows if one.inside is not None]
    return mean(found) if found else None


def _sums(name: str, rows: Sequence[Row]) -> str:
    refused = sum(one.said is None for one in rows)
    share = inside(rows)
    cells = (
        name,
        f"{len(rows)}",
        f"{len(rows) - refused}",
        f"{refused}",
        _points(mean_error(rows)),
        _points(mean_width(rows)),
        "" if share is None else f"{share:.0%}",
    )
    return f"| {' | '.join(cells)} |"


def _points(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
