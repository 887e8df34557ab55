"""JSON as this program prints it: one document, one line, ASCII."""

from __future__ import annotations

import json
from collections.abc import Mapping

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
