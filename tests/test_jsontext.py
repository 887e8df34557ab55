"""JSON on stdout, whatever a job has put into its names."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.jsontext import dumps


@pytest.mark.parametrize(
    "name",
    ["\x1b[2J", "a\nb", "\x7f", "\x9b31m", "\u202egnp", "\u2028", 'quote" back\\slash', "é😀"],
)
def test_names_arrive_as_they_are_and_do_nothing_to_a_terminal(name: str) -> None:
    text = dumps({name: [name]})
    assert json.loads(text) == {name: [name]}
    assert text.isascii()
    assert text.isprintable()


def test_half_a_surrogate_pair_is_not_passed_on() -> None:
    """Text that os.fsdecode makes of a file name that is no UTF-8; strict parsers fail on it."""
    assert json.loads(dumps({"name": "caf\udce9"})) == {"name": "caf?"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_text_that_is_no_number_is_unknown(value: float) -> None:
    assert dumps({"a": [value, {"b": value}], "c": (value,), "d": 0.5}) == (
        '{"a": [null, {"b": null}], "c": [null], "d": 0.5}'
    )


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.floats(), st.integers(), st.none())))
def test_any_document_is_one_printable_line_of_strict_json(document: dict[str, object]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = dumps(document)
    assert text.isascii()
    assert text.isprintable()
    assert len(json.loads(text, parse_constant=refuse)) == len(document)
