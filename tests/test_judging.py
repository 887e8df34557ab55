"""When what chance has a hand in is right, wrong, or not judged."""

from __future__ import annotations

import random
from pathlib import Path

import psutil
import pytest

from support.judging import CROWDED_CORES, Look, Strangers, conclude, settled, verdict
from support.programs import program
from support.waiting import until


@pytest.fixture(autouse=True)
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JUDGED", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)


def looks(*margins: float, crowded: bool = False) -> list[Look]:
    return [Look((margin,), crowded) for margin in margins]


@pytest.mark.parametrize(
    ("seen", "right"),
    [
        pytest.param(looks(*[0.2] * 5), True, id="clear"),
        pytest.param(looks(*[0.2] * 4), None, id="too few"),
        pytest.param(looks(*[-0.2] * 5), False, id="clearly not"),
        pytest.param(looks(0.3, -0.1, 0.3, -0.1, 0.3), None, id="it varies"),
        pytest.param(looks(*[-0.2] * 9, crowded=True), None, id="others may be why"),
        pytest.param(looks(*[0.2] * 5, crowded=True), True, id="in spite of others"),
        pytest.param(
            looks(*[0.2] * 9, crowded=True) + looks(*[-0.1] * 5), False, id="without the others"
        ),
    ],
)
def test_a_verdict_takes_enough_looks_and_a_machine_of_ones_own(
    seen: list[Look], *, right: bool | None
) -> None:
    assert verdict(seen) is right


def test_one_condition_of_many_that_does_not_hold_is_enough() -> None:
    assert verdict([Look((1.0, -0.1, 1.0))] * 5) is False


def test_hardly_any_verdict_is_wrong() -> None:
    draw = random.Random(3)  # noqa: S311 - no secret
    ended = []
    for _ in range(1000):
        seen: list[Look] = []
        while verdict(seen) is None and len(seen) < 30:
            seen += looks(draw.gauss(0.1, 0.1))
        ended.append(verdict(seen))
    assert ended.count(False) < 10
    assert ended.count(True) > 500


def test_what_is_not_known_is_skipped_and_all_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGED", f"{tmp_path / 'judged'}")
    conclude("fine", right=True)
    with pytest.raises(AssertionError, match="the share"):
        conclude("the share", right=False)
    with pytest.raises(pytest.skip.Exception, match="not judged: a hog"):
        conclude("a hog", right=None)
    said = (tmp_path / "judged").read_text().splitlines()
    assert [line.partition(" tests")[0] for line in said] == [
        "judged",
        "judged",
        "not judged: a hog",
    ]


def test_in_ci_nothing_is_judged_beside_other_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGED", f"{tmp_path / 'judged'}")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    with pytest.raises(AssertionError, match="beside other tests"):
        conclude("fine", right=True)


def test_a_result_that_is_wrong_while_others_work_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for crowd, ends in ((True, pytest.skip.Exception), (False, AssertionError)):
        monkeypatch.setattr(Strangers, "crowd", crowd)
        with pytest.raises(ends):
            settled(lambda: 3, lambda found: f"it is {found}")
        assert settled(lambda: 3, lambda _: None) == 3


def test_what_we_start_is_no_stranger() -> None:
    with program("ready()\nburn()") as busy, program("ready()\ntold()") as idle:
        ours, of_idle = Strangers(), Strangers(psutil.Process(idle.pid))
        until(lambda: sum(psutil.Process(busy.pid).cpu_times()[:2]) > 1, "a second of work")
        assert of_idle.cores > ours.cores + CROWDED_CORES


def test_whom_we_did_not_start_is_one() -> None:
    with program("ready()\nburn()"), program("ready()\ntold()") as idle:
        others = Strangers(psutil.Process(idle.pid))
        until(lambda: others.crowd, "a crowd")
