"""What a GPU can be like, for other tests: what differs from a healthy one, as `Gpu` has it."""

from __future__ import annotations

from collections.abc import Mapping

from rules.cases import field, rows

Shares = Mapping[str, float | None]
State = Mapping[str, float | Shares | None]
STATES: Mapping[str, State] = {
    name: {key: field(key, value) for key, value in row.items()}
    for name, row in rows("states").items()
}
WELL, IDLE, STORAGE, REMOTE = (STATES[name] for name in ("well", "idle", "storage", "remote"))
FEW_WORKERS, PREPROCESSING = STATES["few_workers"], STATES["preprocessing"]
THROTTLED, LOOP, COPYING = STATES["throttled"], STATES["loop"], STATES["copying"]
SMALL_BATCH, HOT_BOARD = STATES["small_batch"], STATES["hot_board"]
