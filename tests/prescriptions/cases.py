"""The chains of `cases.yml`: what is staged together, and what is changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from gpu_bottleneck_exporter.prescription.model import KNOBS
from prescriptions.settings import Batch, Chain, Loop, Setting

Groups = tuple[tuple[Chain, ...], ...]


def _chain(told: Mapping[str, Any]) -> Chain:
    left: dict[str, Any] = {
        name: tuple(it) if isinstance(it, list) else it for name, it in told.items()
    }

    def taken(kind: type) -> dict[str, Any]:
        return {one.name: left.pop(one.name) for one in fields(kind) if one.name in left}

    family, _, name = left.pop("title").partition(": ")
    never = left.pop("never", ())
    batch = Batch(**taken(Batch))
    setting = Setting(Loop(batch, **{"workers": 1, **taken(Loop)}), **taken(Setting))
    return Chain(
        family,
        name,
        setting,
        never=frozenset(KNOBS if never == "any" else never),
        **taken(Chain),
        **left,
    )


def _groups(told: Sequence[Sequence[Mapping[str, Any]]]) -> Groups:
    return tuple(tuple(map(_chain, group)) for group in told)


_TOLD = yaml.safe_load(Path(__file__).with_name("cases.yml").read_text(encoding="utf-8"))
GROUPS = (*_groups(_TOLD["new"]), *_groups(_TOLD["tried"]))
CHAINS = tuple(chain for group in GROUPS for chain in group)
FITTED = frozenset(
    chain.title for chain in CHAINS if hashlib.sha256(chain.title.encode()).digest()[0] % 3 == 0
)
"""Those on which the interval (`ERROR`) was fitted: a third, drawn by their titles' hash."""
