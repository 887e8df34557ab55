"""Plain lines, where there is no terminal."""

from __future__ import annotations

import time
from functools import partial

import pytest

from gpu_bottleneck_exporter.driver.protocol import Driver, DriverMissing
from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.nodeview.model import DASH
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.top.lines import documents, table, write
from gpu_bottleneck_exporter.top.refresh import Refresher
from gpu_bottleneck_exporter.top.source import Local
from support.nodes import node, with_gpu
from support.states import ampere, hopper, state


def late() -> Driver:
    time.sleep(1.0)
    raise DriverMissing("none here")


def test_a_line_has_the_prescription_below_its_title() -> None:
    """The titles come once, whatever is prescribed later."""
    healthy, idle = (node(state(gpu)) for gpu in (ampere(), hopper()))
    said: list[str] = []
    table(said.append, "", healthy, first=True)
    table(said.append, "", idle, first=False)
    heading, without, having = said
    at, end = heading.index("PRESCRIPTION"), heading.index("WAITS")
    assert without[at:end].strip() == DASH
    assert having[at:end].strip() == "num_workers 2 → 6: 93 %"
    assert having[end:].startswith("unknown 7%, asleep 6%")


def test_hostile_names_cannot_steer_the_terminal() -> None:
    evil = "\x1b[2J\r\u202eevil"
    shown = with_gpu(
        node(state(hopper())), uuid=evil, verdict=evil, stall_ratios={evil: 0.3}, name=evil
    )
    said: list[str] = []
    table(said.append, evil, shown, first=True)
    documents(said.append, evil, shown, True)  # noqa: FBT003 - see Show
    assert all(line.isprintable() for line in said)


def test_a_driver_that_opens_slowly_is_waited_for() -> None:
    source = Local(Settings(), late, 0.1)
    said: list[str] = []
    show = partial(table, said.append)
    try:
        with pytest.raises(ExporterError, match="no GPU to show: none here"):
            write(Refresher(source, 0.1), 0.1, 1, show, said.append)
    finally:
        source.close()
    assert said == []
