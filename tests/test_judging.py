"""When what chance has a hand in is right, wrong, or not judged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.judging import Look, conclude, verdict
from support.rows import rows


def looks(*margins: float, crowded: bool = False) -> list[Look]:
    return [Look((margin,), crowded) for margin in margins]


@rows(
    "seen, right",
    {
        "clear": (looks(*[0.2] * 5), True),
        "too few": (looks(*[0.2] * 4), None),
        "clearly not": (looks(*[-0.2] * 5), False),
        "it varies": (looks(0.3, -0.1, 0.3, -0.1, 0.3), None),
        "others may be why": (looks(*[-0.2] * 9, crowded=True), None),
        "in spite of others": (looks(*[0.2] * 5, crowded=True), True),
        "without the others": (looks(*[0.2] * 9, crowded=True) + looks(*[-0.1] * 5), False),
        "a hiccup": (looks(-1.4, *[0.2] * 10), None),
        "a hiccup among many": (looks(-1.4, *[0.2] * 11), True),
        "a hiccup that is most of it": (looks(-2.4, *[0.2] * 11), None),
        "two hiccups in a row": (looks(*[0.2] * 10, -0.4, -0.3), True),
        "two hiccups": (looks(-0.4, *[0.2] * 10, -0.3), None),
        "above zero in the mean alone": (looks(*[0.9, -0.1, 0.9] * 4), None),
    },
)
def test_a_verdict_takes_enough_samples_and_an_undisturbed_machine(
    seen: list[Look], *, right: bool | None
) -> None:
    assert verdict(seen) is right


def test_unknown_verdicts_are_skipped_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGED", f"{tmp_path / 'judged'}")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    conclude("fine", right=True)
    with pytest.raises(AssertionError, match="the share"):
        conclude("the share", right=False)
    with pytest.raises(pytest.skip.Exception, match="not judged: a hog"):
        conclude("a hog", right=None)
    result = (tmp_path / "judged").read_text()
    assert re.findall("^(?:not )?judged", result, re.MULTILINE) == [
        "judged",
        "judged",
        "not judged",
    ]
