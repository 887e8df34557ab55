"""Which reports of Prometheus count as right, and which as wrong."""

from __future__ import annotations

import pytest

from causes.cases import NOTHING, Diagnosis, Expected
from causes.heard import HELD, Series, Told, Whose

HANG = Diagnosis("GpuCollectiveHang", "collective_hang")
STARTUP = Diagnosis("GpuStartupStall", "startup_stall")
PCIE = Diagnosis("GpuPcieTransferBound", "pcie_transfer_bound", "warning")
PCIE_INFO = Diagnosis("GpuPcieTransferBound", "pcie_transfer_bound", "info")
UUID = "GPU-1"
SECONDS = range(60)
EXPECTED = Expected(HANG)


def series(name: str, since: int = 0, until: int = 60, **labels: str) -> Series:
    samples = [(float(second), 1.0) for second in SECONDS if since <= second < until]
    return {"__name__": name, "uuid": UUID, **labels}, samples


def alert(what: Diagnosis, since: int = 30, until: int = 60, uuid: str = UUID) -> Series:
    labels = {"alertname": what.alert, "cause": what.cause, "severity": what.severity}
    return series("ALERTS", since, until, alertstate="firing", **{**labels, "uuid": uuid})


def primary(cause: str, since: int = 20, until: int = 60) -> Series:
    return series("gpu:bottleneck:primary", since, until, cause=cause)


RIGHT = [alert(HANG), primary(HANG.cause)]


@pytest.mark.parametrize(
    ("expected", "said", "wrong"),
    [
        pytest.param(NOTHING, [], None, id="silent"),
        pytest.param(EXPECTED, RIGHT, None, id="as it should"),
        pytest.param(NOTHING, [alert(HANG, uuid="GPU-2")], None, id="of another GPU"),
        pytest.param(EXPECTED, [], "does not fire, the primary cause is none", id="nothing"),
        pytest.param(NOTHING, [alert(HANG, 20, 25)], "GpuCollectiveHang", id="for a while"),
        pytest.param(NOTHING, [primary("straggler")], "is straggler", id="no alert, but a cause"),
        pytest.param(NOTHING, [primary("straggler", 50, 54)], None, id="a cause that flickers"),
        pytest.param(EXPECTED, [alert(HANG, 5, 20), RIGHT[1]], "does not fire", id="over"),
        pytest.param(EXPECTED, [*RIGHT, alert(STARTUP)], "GpuStartupStall", id="another beside"),
        pytest.param(
            Expected(HANG, besides=frozenset({STARTUP})), [*RIGHT, alert(STARTUP)], None, id="both"
        ),
        pytest.param(
            Expected(PCIE), [alert(PCIE_INFO), primary(PCIE.cause)], "fire", id="not so severe"
        ),
        pytest.param(
            Expected(STARTUP, seconds=20.0),
            [alert(STARTUP, 10, 25), primary(STARTUP.cause, 8, 25), alert(HANG)],
            None,
            id="judged before the end",
        ),
    ],
)
def test_what_is_wrong(expected: Expected, said: list[Series], wrong: str | None) -> None:
    alerts = [one for one in said if one[0]["__name__"] == "ALERTS"]
    causes = [one for one in said if one not in alerts]
    told = Told(0.0, alerts, causes, [series(HELD)])
    found = told.heard(Whose("it"), expected, HELD, uuid=UUID).wrong
    assert found is None if wrong is None else wrong in (found or "")


@pytest.mark.parametrize("looked_at", [[], [series("up")], [series(HELD, since=58)]])
def test_what_nobody_looked_at_is_not_right(looked_at: list[Series]) -> None:
    told = Told(0.0, [], [], looked_at)
    assert told.heard(Whose("it"), NOTHING, HELD, uuid=UUID).wrong
