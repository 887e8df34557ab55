"""The schema of the values: what it refuses, and in how many words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.log import LOG_FORMATS, LOG_LEVELS
from gpu_bottleneck_exporter.web.config import parse
from helm import chart
from helm.chart import below, rendered
from support.offenders import each
from support.rows import beside

DEFAULTS = dict(chart.chart().values)
SCHEMA = dict(chart.chart().schema)
FREE = {"labels", "requests", "limits", "global"}
"""Maps with any keys."""


def sections(values: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Maps whose keys the chart knows."""
    yield above
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in FREE:
            yield from sections(value, (*above, key))


def refused(values: Mapping[str, Any]) -> str:
    with pytest.raises(chart.helm.HelmError) as error:
        rendered(values)
    result = str(error.value)
    assert not re.search("false schema|'[a-zA-Z]+' failed", result), result
    return result


@each(sections(DEFAULTS))
def test_a_key_that_does_not_exist(path: tuple[str, ...]) -> None:
    assert "additional properties 'typo' not allowed" in refused(below((*path, "typo"), "x"))


@each(chart.leaves(DEFAULTS))
def test_another_type(default: tuple[tuple[str, ...], object]) -> None:
    path, value = default
    other = {"x": "y"} if not isinstance(value, dict) else "x"
    result = refused(below(path, other))
    assert path[-1] in result
    assert "got" in result or "must be one of" in result or "value must" in result


REFUSED = beside(__file__, "refused.yml")
SENSELESS = [pair for row in REFUSED["senseless"] for pair in row.items()]


@each(SENSELESS)
def test_a_value_that_makes_no_sense(given: tuple[str, object]) -> None:
    path, value = given
    assert path.rpartition(".")[2] in refused(below(tuple(path.split(".")), value))


@each(REFUSED["accepted"])
def test_a_value_at_the_limit(values: Mapping[str, Any]) -> None:
    assert rendered(values).objects


@each(REFUSED["contradicting"])
def test_values_that_contradict_each_other(said: str) -> None:
    assert said in refused(REFUSED["contradicting"][said])


def test_the_schema_has_all_values_of_command_and_parent_chart() -> None:
    assert rendered({"global": {"a": {"b": 1}}, "enabled": True}).objects
    exporter = SCHEMA["properties"]["exporter"]["properties"]
    assert set(exporter["logLevel"]["enum"]) == set(LOG_LEVELS)
    assert set(exporter["logFormat"]["enum"]) == set(LOG_FORMATS)
    assert set(exporter["disabledCollectors"]["items"]["enum"]) == {c.name for c in ALL}
    assert set(exporter["enabledCollectors"]["items"]["enum"]) == {c.name for c in ALL if not c.on}


def test_the_schema_has_all_fields_of_the_web_config(tmp_path: Path) -> None:
    result = SCHEMA["properties"]["webConfig"]["properties"]["content"]["properties"]
    file = tmp_path / "web.yml"
    file.write_text("".join(f"{key}: {{}}\n" for key in result), encoding="utf-8")
    parse(file)
