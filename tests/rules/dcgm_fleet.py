"""Nodes of a made-up fleet as dcgm-exporter shows them, which `situations.yml` holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rules.cases import rows, signal
from rules.fleet import FILES, GROUPS, RULES, Fleet, group_names

DCGM_FILES = (*FILES, RULES / "dcgm.yml")
_FIRST = GROUPS.index("gpu-inputs")
DCGM_GROUPS = (*GROUPS[:_FIRST], *group_names(DCGM_FILES[-1]), *GROUPS[_FIRST:])
JOB = "dcgm"
Row = Mapping[str, Any]
"""What differs from a healthy GPU: fields without their prefix, labels, and what is told of it."""
BASES: Mapping[str, Row] = rows("dcgm_bases")
COUNTER = re.compile("VIOLATION|_NS$|_TOTAL$|REPLAY_COUNTER|TOTAL_ENERGY")
FIELD = re.compile("(?:DEV|PROF)_")


def who(node: str, index: int = 0, **labels: str) -> dict[str, str]:
    """The labels that tell which GPU it is."""
    of_node = {"job": JOB, "instance": node}
    return {**of_node, "gpu": f"{index}", "UUID": f"GPU-{node}-{index}", **labels}


def add_dcgm(fleet: Fleet, node: str, row: Row, index: int = 0) -> None:
    """The series of the GPU; with GPU 0 also `up`."""
    target = row.get("target", {})
    if index == 0:
        fleet.gauge("up", 1, job=JOB, instance=node, **target)
    labels = {
        **who(node, index),
        **target,
        "pci_bus_id": f"00000000:{index:02d}:00.0",
        "device": f"nvidia{index}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": node,
        "DCGM_FI_DRIVER_VERSION": "550.54.15",
        **row.get("labels", {}),
    }
    shown = row if row.get("only") else {**BASES["healthy"], **row}
    for name in filter(FIELD.match, shown):
        if shown[name] is None:
            continue
        add = fleet.counter if COUNTER.search(name) else fleet.gauge
        add(f"DCGM_FI_{name}", signal(f"{shown[name]}"), **labels)
