"""When what chance has a hand in is right, wrong, or not judged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.judging import Look, conclude, verdict


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
