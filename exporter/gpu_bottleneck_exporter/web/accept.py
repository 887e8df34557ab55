"""What a client would rather have: the lists with weights of Accept and Accept-Encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

OPENMETRICS = "application/openmetrics-text"
_OPENMETRICS = (OPENMETRICS, "application/*", "*/*")
_TEXT = ("text/plain", "text/*", "*/*")


def weights(header: str) -> dict[str, float]:
    """Reads such a list (RFC 9110, 12.4.2).

    Args:
        header: The header's value, "" when there was none.

    Returns:
        The weight of each name, in lower case; of one that stands more than once, with
        other parameters, the greatest. A weight that is no number counts as zero.
    """
    found: dict[str, float] = {}
    for item in header.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        found[name] = max(_weight(parameters), found.get(name, 0.0))
    return found


def prefers_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics is wanted more than plain text; if it is named, as much will do.

    A client that takes neither gets plain text: it is better than nothing.
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
            return weight if weight > 0 else 0.0  # not a number, too
    return 1.0
