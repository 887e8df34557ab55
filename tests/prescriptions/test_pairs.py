"""The instrument that holds predictions against outcomes; `make bench-prescriptions` uses it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

import psutil
import pytest

from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.model import (
    KNOBS,
    NOTHING_KNOWN,
    NUM_WORKERS,
    Outlook,
    Prescription,
    Refusal,
    Score,
)
from prescriptions.cases import CHAINS, FITTED, GROUPS
from prescriptions.measure import Glance, Pace, Pair, Seen, measure
from prescriptions.rows import Row, checks
from prescriptions.settings import Batch, Chain, Loop, Setting
from prescriptions.table import tables, wrong
from support.judging import settled

LOOP = Loop(Batch(sleep=0.06, spread=0.5), 1, 0.012)
CHAIN = Chain("a family", "a case", Setting(LOOP), changes=(2.0,))
ADVICE = Prescription("network", NUM_WORKERS, 1, 2, 0.2, 0.4, 0.35, 0.45)
SCORE = Score(NUM_WORKERS, 1, 2, 0.4, 0.35, 0.45, 0.41)
HEALTHY = Chain("healthy", "fed", Setting(LOOP), never=frozenset(KNOBS))


def seen(busy: float, outlook: Outlook = NOTHING_KNOWN, strangers: float = 0.0) -> Seen:
    return Seen(Setting(LOOP), busy, strangers, outlook)


def pair(said: Prescription | Refusal | None, busy: float, **of_pair: Any) -> Pair:  # noqa: ANN401
    of_pair = {"followed": True, "after": seen(busy), **of_pair}
    return Pair(**{"chain": CHAIN, "before": seen(0.2, Outlook(said)), "value": 2.0, **of_pair})


def predicted(busy: float, *, at_most: bool = False, **of_pair: Any) -> Row:  # noqa: ANN401
    return Row(pair(replace(ADVICE, at_most=at_most), busy, **of_pair))


@pytest.mark.parametrize(
    ("after", "inside", "kept", "useful"),
    [
        (0.29, False, True, False),
        (0.31, False, True, True),
        (0.34, False, True, True),
        (0.35, True, True, True),
        (0.45, True, True, True),
        (0.46, False, False, True),
    ],
)
def test_what_came_is_held_against_what_was_said(
    after: float, *, inside: bool, kept: bool, useful: bool
) -> None:
    """A bound is kept if not exceeded, and useful if less than half of the gain too high."""
    row = predicted(after)
    assert row.error == pytest.approx(after - 0.4)
    assert (row.inside, row.kept, row.useful) == (inside, kept, useful)
    assert ("✗" in f"{row}") is not inside


def test_the_tables_tell_bounds_refusals_and_what_was_fitted_apart() -> None:
    old = next(chain for chain in CHAINS if chain.title in FITTED)
    rows = [
        predicted(0.42),
        predicted(0.46, at_most=True),
        *[Row(pair(Refusal("mixed"), 0.5))] * 2,
        predicted(0.4, chain=old, after=seen(0.4, strangers=0.7)),
    ]
    text = tables(rows, [])
    assert "| **all** | 5 | 2 | 2 | 1.0 | 10.0 | 100% | 1 | 6.0 | 0% | 100% |" in text
    assert "fitted on them** | 4 | 2 | 1 | 2.0 | 10.0 | 100% | 1 | 6.0 | 0% | 100% |" in text
    assert "| mixed | 2 |" in text
    assert "1 of 5 pairs; at most 0.7 cores" in text
    assert ["†" in f"{row}" for row in rows] == ["°" in f"{row}" for row in rows] == [0, 0, 0, 0, 1]


def test_what_users_were_told_is_the_score_unless_they_followed() -> None:
    other = Outlook(replace(ADVICE, value=7, busy_ratio=0.9))
    scored = seen(0.42, Outlook(None, SCORE))
    staged = Pair(CHAIN, seen(0.2, other), 2.0, after=scored)
    assert "| 40% (35% to 45%) | 42% | +2.0 | +1.0 |" in f"{Row(staged)}"
    assert Row(replace(staged, followed=True)).said != Row(staged).said
    assert Row(replace(staged, after=seen(0.42))).said is None
    removed = Chain("f", "n", Setting(LOOP), model.HOST_CODE, (0.0,))
    for knob, error in ((model.HOST_CODE, 0.0), (NUM_WORKERS, None)):
        told = seen(0.2, Outlook(replace(ADVICE, knob=knob)))
        assert Row(Pair(removed, told, 0.0, after=seen(0.4))).error == error


def test_a_score_of_another_change_does_not_count_and_is_a_fault() -> None:
    other = Outlook(None, replace(SCORE, value_before=4, value_after=8))
    stray = pair(ADVICE, 0.42, after=seen(0.42, other))
    assert Row(stray).own_score is None
    assert [one.wrong for one in checks(stray)] == [True]
    assert checks(replace(stray, before=seen(0.2, other))) == []


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([predicted(0.43)] * 10, []),
        ([predicted(0.45)] * 10, ["the mean error is 5.0 points"]),
        ([predicted(0.4)] * 8 + [predicted(0.46)] * 2, ["80% lie in their interval"]),
        ([predicted(0.46, at_most=True)], ["0% of the bounds are not exceeded"]),
        ([predicted(0.3, at_most=True)], []),
    ],
)
def test_what_must_hold(rows: list[Row], fault: list[str]) -> None:
    assert wrong(rows, []) == fault


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        (Glance(HEALTHY, seen(0.98)), []),
        (Glance(HEALTHY, seen(0.98, Outlook(ADVICE))), ["healthy: fed: num_workers 1 → 2: 40%"]),
        (pair(ADVICE, 0.4), []),
        (
            pair(replace(ADVICE, needs_cores=2.0, free_cores=1.0), 0.4),
            ["a family: a case: num_workers 1 → 2: 40%, uses 2.0 cores"],
        ),
        (
            pair(replace(ADVICE, needs_memory_bytes=2e9, free_memory_bytes=1e9), 0.4),
            ["a family: a case: num_workers 1 → 2: 40%"],
        ),
    ],
)
def test_nothing_may_be_prescribed_to_the_healthy_or_beyond_what_is_free(
    found: Pair | Glance, faults: list[str]
) -> None:
    assert wrong([], checks(found)) == [f"prescribed for {fault}" for fault in faults]


def test_a_knob_changes_what_it_names_and_nothing_else() -> None:
    saving = replace(LOOP, host=0.01, checkpoint=8.0)
    first = Setting(saving, cpu_limit=0.5, neighbours=2, ranks=(1, 3))
    assert Loop.parse(f"{saving}") == saving
    four = replace(first, loop=saving.with_workers(4))
    for knob, value, after in (
        (NUM_WORKERS, 4, four),
        (model.CPU_LIMIT, 1, replace(first, cpu_limit=1)),
        (model.CPU_CORES, 2, replace(first, neighbours=0)),
        (model.HOST_CODE, 0, replace(first, loop=replace(saving, host=0.0))),
        (model.CHECKPOINTS, 0, replace(first, loop=replace(saving, checkpoint=0.0))),
    ):
        assert first.turned(knob, value) == after
    together = replace(first, together=True)
    assert together.turned(NUM_WORKERS, 4) == replace(four, together=True, ranks=(4, 4))
    shared = replace(first, processes=2)
    assert (shared.value(NUM_WORKERS), shared.turned(NUM_WORKERS, 8).loop.workers) == (2, 4)


def test_the_table_has_enough_pairs_of_every_kind() -> None:
    assert sum(chain.pairs for chain in CHAINS if chain.title not in FITTED) >= 60
    assert len({chain.title for chain in CHAINS}) == len(CHAINS)
    assert {chain.first.loop.venv for chain in CHAINS} == {None, "streaming", "tensorflow", "jax"}
    batches = [chain.first.loop.batch for chain in CHAINS]
    assert {part for batch in batches for part in asdict(batch) if getattr(batch, part)} == {
        part.name for part in fields(Batch)
    }
    assert {chain.knob for chain in CHAINS} == set(KNOBS)


def test_no_cpu_is_burnt_next_to_another_chain_that_does() -> None:
    """Two chains under a CPU limit may: together they fit."""
    for group in GROUPS:
        burning = [chain for chain in group if chain.first.loop.batch.burn >= 0.01]
        assert len(burning) <= 1 or all(chain.first.cpu_limit for chain in burning)


@pytest.mark.alone
@pytest.mark.quick
def test_a_staged_pair_is_what_the_gpu_did() -> None:
    """Sleeping takes no CPU, so that more workers are faster on a busy machine, too."""
    loop = Loop(Batch(sleep=0.1), 1, 0.02, loader="imap")
    job = Setting(loop, ranks=(1,), together=True)
    chain = Chain("sleep", "imap", job, changes=(3.0,), never=frozenset(KNOBS))

    def stage() -> tuple[Glance, Pair]:
        glance, staged = measure([chain], Pace(settle=0.5, watch=3.0, patience=0.0))
        assert isinstance(glance, Glance)
        assert isinstance(staged, Pair)
        return glance, staged

    def hardly_faster(found: tuple[Glance, Pair]) -> str | None:
        """A process may stand still for as long as it is watched."""
        before, after = found[1].before, found[1].after
        assert after is not None
        return None if after.busy > 1.5 * before.busy > 0 else f"{before.busy} → {after.busy}"

    glance, staged = settled(stage, hardly_faster)
    assert staged.before == glance.seen
    assert hardly_faster((glance, staged)) is None
    left = [one for one in psutil.Process().children(recursive=True) if _is_a_loop(one)]
    assert not left


def _is_a_loop(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "prescriptions.loops" in process.cmdline()
    return False
