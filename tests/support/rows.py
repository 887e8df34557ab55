"""Tables of situations, of which each is a test by itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml


def rows(names: str, table: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Run a test for each situation of `table` with its values of `names`, or its only value."""
    several = "," in names
    params = [pytest.param(*(row if several else (row,)), id=name) for name, row in table.items()]
    return pytest.mark.parametrize(names, params)


def beside(module: str, name: str) -> Any:  # noqa: ANN401 - as it is in the file
    """Content of the YAML file of that name beside a module."""
    text = Path(module).with_name(name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=yaml.CSafeLoader)  # in a tenth of the time of safe_load
