"""The instrument that holds predictions against outcomes; `make bench-prescriptions` uses it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import psutil
import pytest

from gpu_bottleneck_exporter.prescription import model
from prescriptions.cases import CHAINS, GROUPS, Chain, is_fitted
from prescriptions.changes import Change, faults, sums, tables
from prescriptions.measure import Pace, Seen, change, measure
from prescriptions.settings import FIELDS, Setting
from support.judging import settled

SETTING = Setting(0.012, sleep=0.06, host=0.01, checkpoint=8.0, cpu_limit=0.5, neighbours=2)
CHAIN = Chain("a loop: held out", SETTING, changes=[2])
FITTED = replace(CHAIN, title="a family: a case")
UNSCORED = replace(CHAIN, knob=model.HOST_CODE)
HEALTHY = replace(CHAIN, never=model.KNOBS)
ADVICE = model.Prescription("network", model.NUM_WORKERS, 1, 2, 0.2, 0.4, 0.35, 0.45)
OTHER = replace(ADVICE, value=7, busy_ratio=0.9)
BOUND = replace(ADVICE, at_most=True)
SCORE = model.Score(model.NUM_WORKERS, 1, 2, 0.4, 0.35, 0.45, 0.41)
MIXED = model.Refusal("mixed")


def pair(
    said: model.Prescription | model.Refusal | None,
    busy: float = 0.42,
    score: model.Score | None = None,
    chain: Chain = CHAIN,
    *,
    followed: bool = True,
) -> Change:
    before = Seen(SETTING, 0.2, 0.0, model.Outlook(said))
    after = Seen(SETTING, busy, 0.0, model.Outlook(None, score))
    return change(chain, 2, before, after, followed=followed)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (pair(ADVICE), "40% (35% to 45%) | 42% | +2.0 | "),
        (pair(BOUND), "up to 40% (35% to 45%) | 42% | +2.0 | "),
        (pair(OTHER, score=SCORE, followed=False), "40% (35% to 45%) | 42% | +2.0 | +1.0"),
        (pair(MIXED, score=SCORE, followed=False), "40% (35% to 45%) | 42% | +2.0 | +1.0"),
        (pair(OTHER, followed=False), "nothing prescribed | 42% |  | "),
        (pair(MIXED), "refused: mixed | 42% |  | "),
        (pair(ADVICE, score=replace(SCORE, value_after=8)), "scored as another change | 42% |  | "),
        (
            pair(replace(ADVICE, knob=model.HOST_CODE), chain=UNSCORED, followed=False),
            "40% (35% to 45%) | 42% | +2.0 | ",
        ),
        (pair(ADVICE, chain=UNSCORED, followed=False), "nothing prescribed | 42% |  | "),
        (pair(MIXED, chain=HEALTHY), "refused: mixed | 42% |  | "),
        (pair(ADVICE, chain=HEALTHY), "num_workers was prescribed | 42% |  | "),
    ],
)
def test_reported_predictions_are_the_score_unless_users_followed(
    found: Change, shown: str
) -> None:
    assert f"{found}".endswith(f"| 20% | {shown} |")
    assert bool(found.fault) == ("another change" in shown or "was prescribed" in shown)


def test_the_tables_separate_bounds_refusals_and_fitted_pairs() -> None:
    new = [pair(ADVICE), pair(BOUND, 0.46), pair(BOUND, 0.29), pair(MIXED), pair(MIXED)]
    changes = [*new, replace(pair(ADVICE, 0.4, chain=FITTED), strangers=0.7)]
    text = tables(changes)
    assert "| **all** | 6 | 2 | 2 | 1.0 | 10.0 | 100% | 2 | 8.5 | 50% | 50% |" in text
    assert "fitted on them** | 5 | 2 | 1 | 2.0 | 10.0 | 100% | 2 | 8.5 | 50% | 50% |" in text
    assert "| refused: mixed | 2 |" in text
    assert ["✗" in f"{item}" for item in changes] == [False, True, True, False, False, False]
    assert ["† °" in f"{item}" for item in changes] == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ([], []),
        ([pair(ADVICE, 0.43)] * 10, []),
        # On the border of the interval.
        ([pair(ADVICE, 0.45), pair(ADVICE, 0.35)], ["mean error, points: 5.0"]),
        ([pair(BOUND, 0.45)], ["their mean error, points: 5.0"]),
        ([pair(ADVICE)] * 8 + [pair(ADVICE, 0.46)] * 2, ["inside: 80%"]),
        ([pair(replace(ADVICE, busy_low_ratio=0.25), 0.4)], ["mean width, points: 20.0"]),
        ([pair(BOUND, 0.46)], ["their mean error, points: 6.0", "not exceeded: 0%"]),
    ],
)
def test_required_accuracy(changes: list[Change], wrong: list[str]) -> None:
    assert faults(sums(changes)) == wrong


def test_a_setting_changes_only_its_subject() -> None:
    ranks = replace(SETTING, ranks=[1, 3])
    for knob, field in FIELDS.items():
        changed: dict[str, Any] = {field: {model.NUM_WORKERS: 4, model.CPU_LIMIT: 1.0}.get(knob, 0)}
        assert ranks.turned(knob, changed[field]) == replace(ranks, **changed)
    together = replace(ranks, together=True)
    assert together.turned(model.NUM_WORKERS, 4) == replace(together, workers=4, ranks=[4, 4])
    shared = replace(SETTING, processes=2)
    assert (shared.value(model.NUM_WORKERS), shared.turned(model.NUM_WORKERS, 8).workers) == (2, 4)


def test_the_chains_have_enough_pairs_of_every_kind() -> None:
    assert sum(chain.pairs for chain in CHAINS if not is_fitted(chain.title)) >= 60
    assert len({chain.title for chain in CHAINS}) == len(CHAINS)
    firsts = [chain.first for chain in CHAINS]
    assert {item.venv for item in firsts} == {None, "streaming", "tensorflow", "jax"}
    used = {name for item in firsts for name, value in asdict(item).items() if value}
    assert used == set(asdict(SETTING))
    assert {chain.knob for chain in CHAINS} == set(model.KNOBS)


def test_no_cpu_is_burnt_next_to_another_chain_that_does() -> None:
    """Two chains under a CPU limit may: together they fit."""
    for group in GROUPS:
        burning = [chain for chain in group if chain.first.burn >= 0.01]
        assert len(burning) <= 1 or all(chain.first.cpu_limit for chain in burning)


@pytest.mark.alone
@pytest.mark.quick
def test_a_staged_pair_has_the_busy_shares_of_the_gpu() -> None:
    """Sleeping takes no CPU, so that more workers are faster on a busy machine, too."""
    job = Setting(0.02, sleep=0.1, loader="imap", ranks=[1], together=True)
    chain = Chain("sleep: imap", job, changes=[3])

    def stage() -> Change:
        (staged,) = measure([chain], Pace(settle=0.5, watch=3.0, patience=0.0))
        return staged

    def hardly_faster(found: Change) -> str | None:
        """A process may stand still for as long as it is watched."""
        faster = (found.outcome or 0.0) > 1.5 * found.before > 0
        return None if faster else f"{found.before} → {found.outcome}"

    assert settled(stage, hardly_faster).done == "1 → 3 workers"
    left = [process for process in psutil.Process().children(recursive=True) if _is_a_loop(process)]
    assert not left


def _is_a_loop(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "prescriptions.loops" in process.cmdline()
    return False
