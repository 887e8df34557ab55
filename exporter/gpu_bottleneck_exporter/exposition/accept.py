"""Content negotiation: the weighted lists of Accept and Accept-Encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS = (OPENMETRICS, "application/*", "*/*")
_TEXT = ("text/plain", "text/*", "*/*")


def weights(header: str) -> dict[str, float]:
    """Parse such a list (RFC 9110, 12.4.2).

    Args:
        header: The header's value, "" when there was none.

    Returns:
        The weight of each name, in lower case. If a name occurs more than once, with other
        parameters, the greatest weight counts. A weight that is not a number is zero.
    """
    found: dict[str, float] = {}
    for item in header.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        found[name] = max(_weight(parameters), found.get(name, 0.0))
    return found


def prefers_openmetrics(accept: str) -> bool:
    """Whether the client prefers OpenMetrics; a tie goes to it if it is named.

    A client that accepts neither gets plain text, which is better than nothing.
    """
    weighed = weights(accept)
    openmetrics, text = _of_first(_OPENMETRICS, weighed), _of_first(_TEXT, weighed)
    return openmetrics > text or (OPENMETRICS in weighed and openmetrics == text > 0)


def _of_first(names: Iterable[str], weighed: Mapping[str, float]) -> float:
    return next((weighed[name] for name in names if name in weighed), 0.0)


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                weight = float(value)
            except ValueError:
                return 0.0
            return weight if weight > 0 else 0.0  # also if it is NaN
    return 1.0
