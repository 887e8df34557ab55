"""A short day of a busy fleet, by the minute, for engines that evaluate rules over the past.

Twelve GPUs on ten nodes: jobs that are starved by one cause after the other, hours without
work, GPUs that are slow or broken, an exporter that is restarted, and a node that is away.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from rules.cases import field, gpu_of, rows
from rules.fleet import Fleet, Gpu, add_gpu, changed
from rules.series import Signal

HOUR = 60
MINUTES = 6 * HOUR
"""From the first to the last change; a minute more costs engines more than a GPU more."""

Shares = Mapping[str, float | None]
State = Mapping[str, float | Shares | None]
"""What differs from a healthy GPU: fields of `Gpu`."""
Plan = Sequence[tuple[int, State]]
"""States, and for how many minutes."""

STATES: Mapping[str, State] = {
    name: {key: field(key, value) for key, value in row.items()}
    for name, row in rows("states").items()
}
WELL, IDLE, STORAGE, REMOTE = (STATES[name] for name in ("well", "idle", "storage", "remote"))
FEW_WORKERS, PREPROCESSING = STATES["few_workers"], STATES["preprocessing"]
THROTTLED, LOOP, COPYING = STATES["throttled"], STATES["loop"], STATES["copying"]
SMALL_BATCH, HOT_BOARD = STATES["small_batch"], STATES["hot_board"]
ABSENCES = ((2 * HOUR, 10), (4 * HOUR + 30, 45))
"""Of node `away`: when, and for how many minutes."""


def day(fleet: Fleet) -> None:
    """Add the day; the fleet lasts for MINUTES."""
    for name, row in rows("day").items():
        node, index = name.split()
        words = row["plan"].split()
        plan = [(int(n), STATES[of]) for of, n in zip(words[::2], words[1::2], strict=True)]
        add_gpu(fleet, node, _gpu(plan, gpu_of(row, "plan")), int(index))
    for start, minutes in ABSENCES:
        fleet.fail_scrapes("away", start, start + minutes)


def json_lines(fleet: Fleet, start: float) -> Iterator[str]:
    """The samples as VictoriaMetrics imports them, the first minute at Unix time `start`."""
    for one in fleet._series:
        there = [
            (minute, value)
            for minute, value in enumerate(one.values)
            if value is not None and not math.isnan(value)
        ]
        if there:
            yield json.dumps(
                {
                    "metric": {"__name__": one.name, **one.labels},
                    "values": [value for _, value in there],
                    "timestamps": [round((start + 60 * minute) * 1000) for minute, _ in there],
                }
            )


def _gpu(plan: Plan, usual: Gpu) -> Gpu:
    """A GPU that goes through the states, and is as usual afterwards."""
    whole = [*plan, (MINUTES + 1, WELL)]
    states = [(minutes, {**state, "stalls": _stalls(state)}) for minutes, state in whole]
    changing: dict[str, object] = {}
    for name in {name for _, state in states for name in state}:
        default = getattr(usual, name)
        values = [(minutes, state.get(name, default)) for minutes, state in states]
        changing[name] = _by_key(values, default) if isinstance(default, Mapping) else values
    return changed(usual, **changing)


def _stalls(state: State) -> Shares:
    """What a state is not put down to is sleep; a GPU that says nothing stalls for nothing."""
    busy, stalls = state.get("busy", Gpu().busy), state.get("stalls", {})
    if not isinstance(busy, float | int):
        return dict.fromkeys(WAITING_ON)
    assert isinstance(stalls, Mapping)
    rest = 1 - busy - sum(share or 0.0 for share in stalls.values())
    return {**dict.fromkeys(WAITING_ON, 0.0), "asleep": rest, **stalls}


def _by_key(values: Sequence[tuple[int, Shares]], default: Shares) -> dict[str, Signal]:
    keys = {key for _, shares in values for key in shares}
    return {
        key: [(minutes, shares.get(key, default.get(key, 0.0))) for minutes, shares in values]
        for key in sorted(keys)
    }
