"""The instrument that holds predictions against outcomes; `make bench-prescriptions` uses it."""

from __future__ import annotations

import random
import statistics
from contextlib import suppress
from dataclasses import asdict, fields, replace

import psutil
import pytest

from gpu_bottleneck_exporter.prescription.model import (
    CHECKPOINTS,
    CPU_CORES,
    CPU_LIMIT,
    HOST_CODE,
    KNOBS,
    NOTHING_KNOWN,
    NUM_WORKERS,
    Outlook,
    Prescription,
    Refusal,
    Score,
)
from prescriptions.cases import CHAINS, GROUPS
from prescriptions.measure import Glance, Pace, Pair, Seen, measure
from prescriptions.rows import Row, checks
from prescriptions.settings import Batch, Chain, Loop, Setting
from prescriptions.table import inside, mean_error, mean_width, summary, tables, wrong
from support.judging import settled

LOOP = Loop(Batch(sleep=0.06, spread=0.5), 1, 0.012)
CHAIN = Chain("a family", "a case", Setting(LOOP), changes=(2.0,))
ADVICE = Prescription("network", NUM_WORKERS, 1, 2, 0.2, 0.4, 0.35, 0.45)
HEALTHY = Chain("healthy", "fed", Setting(LOOP), never=frozenset(KNOBS))


def seen(busy: float, outlook: Outlook = NOTHING_KNOWN) -> Seen:
    return Seen(Setting(LOOP), busy, 0.0, outlook)


def pair(
    said: Prescription | Refusal | None, after: float, outlook: Outlook = NOTHING_KNOWN
) -> Pair:
    before = seen(0.2, Outlook(said))
    return Pair(CHAIN, before, 2.0, followed=True, after=seen(after, outlook))


def predicted(after: float, *, at_most: bool = False) -> Row:
    return Row(pair(replace(ADVICE, at_most=at_most), after))


def test_the_error_is_the_outcome_less_the_prediction() -> None:
    assert predicted(0.43).error == pytest.approx(0.03)
    assert predicted(0.37).error == pytest.approx(-0.03)
    assert predicted(0.37, at_most=True).error == pytest.approx(-0.03)


@pytest.mark.parametrize(
    ("after", "within"), [(0.34, False), (0.35, True), (0.45, True), (0.46, False)]
)
def test_an_outcome_outside_of_the_interval_is_marked(after: float, within: bool) -> None:  # noqa: FBT001
    assert predicted(after).inside is within
    assert ("✗" in f"{predicted(after)}") is not within


def test_a_refusal_has_no_error_and_counts_by_its_reason() -> None:
    rows = [Row(pair(Refusal("no_cores"), 0.4)), Row(pair(Refusal("no_cores"), 0.9))]
    assert [one.error for one in rows] == [None, None]
    assert (mean_error(rows), inside(rows), mean_width(rows)) == (None, None, None)
    assert "| no_cores | 2 |" in tables(rows, [])
    assert "| **all** | 2 | 0 | 2 |  |  |  |" in summary(rows)


def test_the_sums_are_those_of_the_rows() -> None:
    rows = [predicted(0.42), predicted(0.46, at_most=True), Row(pair(Refusal("mixed"), 0.5))]
    lines = summary(rows).splitlines()
    assert lines[-3:] == [
        "| **all** | 3 | 2 | 1 | 4.0 | 10.0 | 50% |",
        "| exact ones | 1 | 1 | 0 | 2.0 | 10.0 | 100% |",
        "| upper bounds | 1 | 1 | 0 | 6.0 | 10.0 | 0% |",
    ]


@pytest.mark.parametrize(
    ("after", "right", "useful"), [(0.46, 0, 1), (0.44, 1, 1), (0.31, 1, 1), (0.3, 1, 0)]
)
def test_a_bound_is_right_if_not_exceeded_and_useful_if_it_is_not_far_too_high(
    after: float, right: int, useful: int
) -> None:
    rows = [predicted(after, at_most=True), predicted(after)]
    told = f"Of 1 upper bounds {right} were not exceeded, and {useful} were useful"
    assert told in tables(rows, [])


def test_what_the_exporter_made_of_it_stands_beside_it() -> None:
    score = Score(NUM_WORKERS, 1, 2, 0.4, 0.35, 0.45, 0.41)
    assert f"{Row(pair(ADVICE, 0.42, Outlook(None, score)))}".endswith("| +2.0 | +1.0 |")


def test_of_a_change_that_was_not_prescribed_users_are_told_by_its_score() -> None:
    score = Score(NUM_WORKERS, 1, 2, 0.4, 0.35, 0.45, 0.41)
    before = seen(0.2, Outlook(replace(ADVICE, value=7, busy_ratio=0.9)))
    staged = Pair(CHAIN, before, 2.0, after=seen(0.42, Outlook(None, score)))
    assert "| 40% (35% to 45%) | 42% |" in f"{Row(staged)}"
    assert Row(replace(staged, after=seen(0.42))).said is None


def test_of_what_is_only_removed_users_are_told_by_its_prescription() -> None:
    chain = Chain("f", "n", Setting(LOOP), HOST_CODE, (0.0,))
    told, other = (Outlook(replace(ADVICE, knob=knob)) for knob in (HOST_CODE, NUM_WORKERS))
    assert Row(Pair(chain, seen(0.2, told), 0.0, after=seen(0.4))).error == 0
    assert Row(Pair(chain, seen(0.2, other), 0.0, after=seen(0.4))).said is None


def test_a_score_of_another_change_does_not_count_and_is_a_fault() -> None:
    other = Score(NUM_WORKERS, 4, 8, 0.4, 0.35, 0.45, 0.41)
    stray = pair(ADVICE, 0.42, Outlook(None, other))
    assert Row(stray).own_score is None
    assert [one.wrong for one in checks(stray)] == [True]
    kept_since = replace(stray, before=seen(0.2, Outlook(None, other)))
    assert checks(kept_since) == []


def test_what_other_programs_may_have_spoilt_is_marked() -> None:
    noisy = replace(pair(ADVICE, 0.4), after=replace(seen(0.4), strangers=0.7))
    assert "†" in f"{Row(noisy)}"
    assert "†" not in f"{predicted(0.4)}"
    assert "1 of 2 pairs; at most 0.7 cores" in tables([Row(noisy), predicted(0.4)], [])


def test_a_line_says_what_was_changed() -> None:
    assert Row(replace(pair(ADVICE, 0.4), followed=False)).change == "1 → 2 workers"
    beset = Chain("f", "n", Setting(LOOP, neighbours=2), CPU_CORES, (2.0,))
    assert Row(Pair(beset, replace(seen(0.2), setting=beset.first), 2.0)).change == (
        "2 → 0 neighbours"
    )


def test_too_large_an_error_or_too_few_within_their_interval_do_not_hold() -> None:
    assert wrong([predicted(0.43)] * 10, []) == []
    assert wrong([predicted(0.45)] * 10, []) == ["the mean error is 5.0 points"]
    assert wrong([predicted(0.4)] * 8 + [predicted(0.46)] * 2, []) == [
        "80% of the outcomes lie in their interval"
    ]


def test_nothing_may_be_prescribed_for_a_healthy_gpu() -> None:
    fine = checks(Glance(HEALTHY, seen(0.98)))
    fault = checks(Glance(HEALTHY, seen(0.98, Outlook(ADVICE))))
    assert wrong([], fine) == []
    assert wrong([], fault) == [
        "prescribed for healthy: fed: num_workers 1 → 2: 40%",
    ]


@pytest.mark.parametrize(
    "much",
    [
        replace(ADVICE, needs_cores=2.0, free_cores=1.0),
        replace(ADVICE, needs_memory_bytes=2e9, free_memory_bytes=1e9),
    ],
    ids=["cores", "memory"],
)
def test_nothing_may_be_prescribed_that_the_machine_cannot_carry(much: Prescription) -> None:
    before = seen(0.2, Outlook(much))
    assert [one.wrong for one in checks(Pair(CHAIN, before, 2.0))] == [True]
    assert checks(Pair(CHAIN, seen(0.2, Outlook(ADVICE)), 2.0)) == []


def test_batches_have_the_mean_and_the_spread_that_is_asked_for() -> None:
    draw = random.Random(1)  # noqa: S311 - no secret
    for spread in (0.0, 0.5, 1.0):
        drawn = [Batch(spread=spread).factor(draw) for _ in range(100_000)]
        assert statistics.mean(drawn) == pytest.approx(1, abs=0.02)
        assert statistics.pstdev(drawn) == pytest.approx(spread, rel=0.05)


def test_a_loop_survives_the_command_line() -> None:
    assert Loop.parse(f"{LOOP}") == LOOP


def test_a_knob_changes_what_it_names_and_nothing_else() -> None:
    first = Setting(replace(LOOP, host=0.01), cpu_limit=0.5, neighbours=2)
    assert first.turned(NUM_WORKERS, 4) == replace(first, loop=replace(first.loop, workers=4))
    assert first.turned(CPU_LIMIT, 1) == replace(first, cpu_limit=1)
    assert first.turned(CPU_CORES, 2) == replace(first, neighbours=0)
    assert first.turned(HOST_CODE, 0) == replace(first, loop=replace(first.loop, host=0.0))
    saving = replace(first, loop=replace(first.loop, checkpoint=8.0))
    assert saving.turned(CHECKPOINTS, 0) == first


def test_the_table_has_enough_pairs_of_every_kind() -> None:
    assert sum(chain.pairs for chain in CHAINS) >= 40
    assert len({chain.title for chain in CHAINS}) == len(CHAINS)
    assert {"queue", "imap"} <= {chain.first.loop.loader for chain in CHAINS}
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


def test_a_staged_pair_is_what_the_gpu_did() -> None:
    """Sleeping takes no CPU, so that twice the workers are twice as fast on a busy machine, too."""
    loop = Loop(Batch(sleep=0.1), 1, 0.02, loader="imap")
    chain = Chain("sleep", "imap", Setting(loop), changes=(3.0,), never=frozenset(KNOBS))

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
    assert staged.after is not None
    assert hardly_faster((glance, staged)) is None
    left = [one for one in psutil.Process().children(recursive=True) if _is_a_loop(one)]
    assert not left


def _is_a_loop(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "prescriptions.loops" in process.cmdline()
    return False
