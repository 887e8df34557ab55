"""JSON as single-line ASCII, and its parser."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gpu_bottleneck_exporter.generics import T

Document = Mapping[str, object]
"""A mapping of text, numbers, booleans, None (unknown), and lists and mappings of these."""


def dumps(document: Document) -> str:
    """Encode on one line, with null for NaN and infinities.

    Names may be malicious: characters that move a cursor, hide text or end the line are escaped; a
    lone surrogate becomes a question mark.
    """
    text = json.dumps(document, ensure_ascii=False, default=dict).encode(errors="replace")
    plain = json.loads(text, parse_constant=lambda _: None)
    return json.dumps(plain).replace("\x7f", r"\u007f")


def parsed(text: bytes) -> dict[str, object]:
    """Parse a JSON object. Raises ValueError."""
    try:
        return checked(dict, json.loads(text))
    except RecursionError as error:
        raise ValueError(f"{error}") from error


def checked(kind: type[T], value: object) -> T:
    """`value`, if its type is `kind` and no subclass. Raises ValueError otherwise."""
    if not isinstance(value, kind) or type(value) is not kind:
        raise ValueError(f"{type(value).__name__} in place of {kind.__name__}")
    return value
