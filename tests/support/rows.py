"""Tables of situations, of which each is a test by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def rows(names: str, table: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Run a test for each situation of `table` with its values of `names`, or its only value."""
    several = "," in names
    params = [pytest.param(*(row if several else (row,)), id=name) for name, row in table.items()]
    return pytest.mark.parametrize(names, params)
