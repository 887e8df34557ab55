"""Plain lines, where there is no terminal."""

from __future__ import annotations

import time

import pytest

from gpu_bottleneck_exporter.driver.protocol import Driver, DriverMissing
from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.nodeview.model import DASH
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.top.run import table, write
from gpu_bottleneck_exporter.top.source import Feed, Local
from support.nodes import node
from support.states import ampere, hopper, state


def late() -> Driver:
    time.sleep(1.0)
    raise DriverMissing("none here")


def test_a_line_has_its_recommendation_below_its_title() -> None:
    """The titles come once, whatever is recommended later."""
    healthy, idle = (node(state(gpu)) for gpu in (ampere(), hopper()))
    titles, without = table(healthy, heading=True)
    (having,) = table(idle, heading=False)
    at, end = titles.index("TRY"), titles.index("WAITS")
    assert without[at:end].strip() == DASH
    assert having[at:end].strip() == "Use 6 loader workers: 93 %"
    assert having[end:].startswith("unknown 7 %, asleep 6 %")


def test_a_driver_that_opens_slowly_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    source = Local(Settings(), late, 0.1)
    try:
        with pytest.raises(ExporterError, match="no GPU to show: none here"):
            write(Feed(source, 0.1), 0.1, 1)
    finally:
        source.close()
    assert capsys.readouterr() == ("", "")
