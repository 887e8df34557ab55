"""What alerts say of prescriptions, rendered by a real Prometheus: with one, and without."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_bottleneck_exporter.prescription.model import KNOBS, NUM_WORKERS, REMOVED
from rules.causes_table import pack, signal_and_remedy
from rules.fired import fired, vector
from rules.fleet import RULES
from rules.test_annotations import TARGET

PRESCRIBED = re.compile(r"\{\{- \$of := .*$", re.DOTALL)
TOLD = [rule for rule in pack() if PRESCRIBED.search(rule.annotations.get("description", ""))]
_RISING = sorted(TOLD, key=lambda rule: ("info", "warning").index(rule.labels["severity"]))
SEVEREST = list({rule.labels["cause"]: rule for rule in _RISING}.values())
"""The severest alert of each cause."""
CAUSES = {
    *("cpu_throttled", "cpu_oversubscribed", "cpu_preprocessing_bound", "too_few_workers"),
    *("inline_loading", "host_loop_bound", "checkpoint_stall", "startup_stall", "restart_loop"),
    *("local_storage_bound", "network_storage_bound"),
}
"""Those with a knob."""
AT_MOST = {NUM_WORKERS, *REMOVED}
"""Knobs of which the prediction is said to be an upper bound here."""
HOSTILE = 'a"b\\c\n{{ .X }} é'
"""Part of the labels of a target or GPU, which anybody may shape."""
NOWHERE = "nothing"
"""Stands for a GPU for which nothing is prescribed."""


def rendered_texts(folder: Path) -> Mapping[tuple[str, str], str]:
    """Descriptions by cause and by knob that is prescribed."""
    found = fired(folder, _made(), len(SEVEREST) * len((*KNOBS, NOWHERE)))
    return {
        (one["labels"]["cause"], one["labels"]["gpu"]): one["annotations"]["description"]
        for one in found
    }


def _made() -> list[Mapping[str, Any]]:
    """The same alerts, but they fire at once, for GPUs with each prescription and with none."""
    gpus = {knob: _labels(knob) for knob in (*KNOBS, NOWHERE)}
    records = [
        {"record": f"gpu:prescription:{name}", "expr": vector({**labels, "knob": knob}, value)}
        for knob, labels in gpus.items()
        for name, value in (
            *(("speedup", "2.114"), ("current_value", "0.5"), ("value", "6.2345")),
            ("upper_bound", f"{int(knob in AT_MOST)}"),
        )
        if knob != NOWHERE
    ]
    made = [
        {
            "alert": alert.name,
            "expr": " or ".join(
                vector({**labels, "workload": "w", "cause": alert.labels["cause"]}, "0.63")
                for labels in gpus.values()
            ),
            "labels": alert.fields["labels"],
            "annotations": alert.annotations,
        }
        for alert in SEVEREST
    ]
    return [*records, *made]


def _labels(knob: str) -> dict[str, str]:
    names = {"job": TARGET["job"] + HOSTILE, "instance": TARGET["instance"] + HOSTILE}
    return {**names, "gpu": knob, "uuid": f"GPU-{knob}{HOSTILE}"}


def test_a_cause_with_a_knob_tells_what_is_prescribed() -> None:
    assert {rule.labels["cause"] for rule in TOLD} == CAUSES
    of_causes = [rule for rule in pack() if rule.is_alert and rule.labels.get("cause") in CAUSES]
    assert of_causes == TOLD


def test_all_of_them_have_the_same_template() -> None:
    assert (
        len({text for rule in TOLD for text in PRESCRIBED.findall(rule.annotations["description"])})
        == 1
    )


def test_all_of_their_runbooks_tell_the_number() -> None:
    """With a query of their own cause, else in the same words; no other runbook does."""
    pages = {page.stem: page.read_text(encoding="utf-8") for page in RULES.glob("runbooks/*.md")}
    numbers = {name: text.split("\nThe number: ")[1:] for name, text in pages.items()}
    causes = {rule.name: rule.labels["cause"] for rule in TOLD}
    assert {name for name, found in numbers.items() if found} == causes.keys()
    told = {
        numbers[name][0].partition("\n## ")[0].replace(f'"{cause}"', '"X"')
        for name, cause in causes.items()
    }
    assert len(told) == 1


def test_the_number_has_all_that_is_recorded_of_a_gpu() -> None:
    recorded = {rule.name for rule in pack() if rule.name.startswith("gpu:prescription:")}
    text = (RULES / "runbooks/GpuTooFewWorkers.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text.partition("The number: ")[2].partition("```")[0]))
    assert {f"gpu:prescription:{name}" for name in named} == recorded


def test_it_names_the_number(tmp_path: Path) -> None:
    """Without a prescription it reads as before."""
    texts = rendered_texts(tmp_path)
    remedies = {
        rule.labels["cause"]: signal_and_remedy(rule.annotations["description"])[1]
        for rule in SEVEREST
    }
    assert remedies.keys() == CAUSES
    for cause, remedy in remedies.items():
        assert texts[cause, NOWHERE].endswith(f" {remedy}")
        assert "times as fast" not in texts[cause, NOWHERE]
        for knob in KNOBS:
            before = texts[cause, NOWHERE].replace(NOWHERE, knob)
            assert texts[cause, knob] == before + _number(knob)


def _number(knob: str) -> str:
    if knob in REMOVED:
        return f" Without the wait for {knob}: up to 2.1 times as fast."
    bound = "up to" if knob in AT_MOST else "about"
    return f" Raise {knob} from 0.5 to 6.23: {bound} 2.1 times as fast."
