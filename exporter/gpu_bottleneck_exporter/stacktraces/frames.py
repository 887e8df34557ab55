"""A frame of a Python stack."""

from __future__ import annotations

from typing import NamedTuple


class Frame(NamedTuple):
    """A call in a stack."""

    function: str
    file: str
    line: int
