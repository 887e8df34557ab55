"""The node document as JSON: what is written is read, and what is no such document is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import Any

import pytest

from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview import wire
from gpu_bottleneck_exporter.nodeview.wire import document, node_in
from support.nodes import node, with_gpu
from support.states import NO_DRIVER, mixed_state

Fields = dict[str, Any]


def written() -> Fields:
    result: Fields = json.loads(dumps(document(node(mixed_state()))))
    return result


def read(found: object) -> None:
    node_in(json.dumps(found).encode())


@pytest.mark.parametrize("now", [mixed_state(), NO_DRIVER], ids=["gpus", "none"])
def test_a_written_document_is_read(now: Any) -> None:  # noqa: ANN401 - a state
    result = node(now)
    assert node_in(dumps(document(result)).encode()) == result


def test_fields_of_other_versions_are_passed_over_or_unknown() -> None:
    result = written()
    result["later"] = result["gpus"][0]["later"] = {"a": [1]}
    del result["signals"], result["gpus"][0]["power_watts"]
    again = node_in(json.dumps(result).encode())
    assert (again.signals, again.gpus[0].power_watts) == ({}, None)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("gpus",), {}),
        (("gpus",), None),
        (("gpus", 0), "0"),
        (("gpus", 0, "gpu"), 0),
        (("gpus", 0, "up"), 1),
        (("gpus", 0, "busy_ratio"), 2),
        (("gpus", 0, "busy_ratio"), float("nan")),
        (("gpus", 0, "power_watts"), float("inf")),
        (("gpus", 0, "power_watts"), True),
        (("gpus", 0, "power_watts"), 10**400),
        (("gpus", 0, "stall_ratios", "storage"), 1e9),
        (("gpus", 0, "processes"), 1.5),
        (("gpus", 0, "owners", 0, "user"), ["root"]),
        (("gpus", 0, "prescription", "value"), None),
        (("gpus", 0, "prescription"), {"knob": "num_workers"}),
        (("version",), None),
    ],
)
def test_nonsense_is_refused(path: tuple[Any, ...], value: object) -> None:
    result: Any = written()
    read(result)
    *steps, last = path
    reduce(getitem, steps, result)[last] = value
    with pytest.raises(ValueError):  # noqa: PT011 - its caller says which address it was
        read(result)


@pytest.mark.parametrize(
    "text", [b"", b"# TYPE up gauge\nup 1\n", b"[]", b"{}", b"[" * 100_000, b"\xff", b"9" * 5000]
)
def test_other_texts_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its caller says which address it was
        node_in(text)


def test_texts_that_are_read_can_be_printed() -> None:
    evil = "\x1b[2J\u202e\nevil"
    result = with_gpu(
        node(mixed_state()), name=evil, owners=({evil: evil},), verdict=evil, evidence=(evil,)
    )
    gpu = node_in(dumps(document(replace(result, driver_status=evil))).encode()).gpus[0]
    good = "?[2J??evil"
    assert (gpu.name, gpu.owners, gpu.verdict) == (good, ({good: good},), good)
    assert gpu.evidence == (good,)


def test_neither_side_takes_more_than_a_bounded_part() -> None:
    most, long = wire.MAX_ITEMS, "x" * (2 * wire.MAX_CHARACTERS)
    many = with_gpu(node(mixed_state()), name=long, holder_pids=tuple(range(2 * most)))
    (gpu,) = json.loads(dumps(document(many)))["gpus"]
    assert (len(gpu["name"]), len(gpu["holder_pids"])) == (wire.MAX_CHARACTERS, most)
    gpu |= {"name": long, "holder_pids": [1] * 2 * most, "owners": [{long: long}] * 2 * most}
    taken = node_in(json.dumps({**written(), "gpus": [gpu] * 2}).encode()).gpus[0]
    assert taken.holder_pids is not None
    assert taken.owners is not None
    assert (len(taken.name or ""), len(taken.holder_pids)) == (wire.MAX_CHARACTERS, most)
    assert len(taken.owners) == most
    assert {len(text) for pair in taken.owners[0].items() for text in pair} == {wire.MAX_CHARACTERS}


def test_the_bound_of_a_document_leaves_room_for_a_full_machine() -> None:
    full = replace(node(mixed_state()), gpus=node(mixed_state()).gpus * 32)
    assert len(dumps(document(full))) < wire.MAX_DOCUMENT_BYTES / 5
