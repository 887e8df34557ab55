"""Content negotiation: the weighted lists of Accept and Accept-Encoding."""

from __future__ import annotations

import re


def weights(header: str) -> dict[str, float]:
    """Parse a weighted list (RFC 9110, 12.4.2).

    Args:
        header: The header's value, "" when there was none.

    Returns:
        The weight of each name, in lower case. If a name occurs more than once, with other
        parameters, the greatest weight counts. A weight that is not a number is zero.
    """
    result: dict[str, float] = {}
    for item in "".join(header.lower().split()).split(","):
        name = item.partition(";")[0]
        match = re.search(r";q=([^;]*)", item)
        weight = match[1] if match else "1"
        number = float(weight) if re.fullmatch(r"[01](\.[0-9]*)?", weight) else 0.0
        result[name] = max(number, result.get(name, 0.0))
    return result


def prefers_openmetrics(accept: str) -> bool:
    """Whether the client names OpenMetrics and weighs it at least as plain text."""
    weighed = weights(accept)
    openmetrics = weighed.get("application/openmetrics-text", 0.0)
    return openmetrics > 0 and openmetrics >= weighed.get("text/plain", 0.0)
