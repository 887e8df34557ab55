"""JSON as this program prints it, one document on one line of ASCII, and as it reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

Found = TypeVar("Found")
Document = Mapping[str, object]
"""Of text, numbers, booleans, None (unknown), and lists and mappings of these."""


def dumps(document: Document) -> str:
    """`document` on one line; NaN and infinities, which JSON lacks, are null.

    Whatever a job may have put into a name arrives escaped: nothing moves a cursor, hides text or
    ends the line, and half a surrogate pair, on which strict parsers fail, becomes a question mark.
    """
    text = json.dumps(document, ensure_ascii=False, default=dict).encode(errors="replace")
    plain = json.loads(text, parse_constant=lambda _: None)
    return json.dumps(plain).replace("\x7f", r"\u007f")


def parsed(text: bytes) -> dict[str, object]:
    """The JSON object in `text`. Raises ValueError if it is none."""
    try:
        return checked(dict, json.loads(text))
    except RecursionError as error:
        raise ValueError(f"{error}") from error


def checked(kind: type[Found], given: object) -> Found:
    """`given`, whose type is `kind` itself. Raises ValueError if it is another."""
    if not isinstance(given, kind) or type(given) is not kind:
        raise ValueError(f"{type(given).__name__} in place of {kind.__name__}")
    return given
