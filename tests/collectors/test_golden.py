"""One exposition, kept as a file, in which every family occurs.

`pytest tests/collectors/test_golden.py --update-golden` writes it anew.
"""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.exposition.render import Exposition
from support.states import FixedSampler, mixed_state, shared
from tables import metrics

GOLDEN = Path(__file__).with_name("golden.prom")
_OWN = "# HELP process_"


def exposition() -> str:
    """Everything but the process metrics, and without the versions of the day."""
    mixed = mixed_state()
    state = replace(mixed, gpus=(*mixed.gpus, shared()))
    text, _, _ = Exposition(FixedSampler(state), ALL).render()[0].decode().partition(_OWN)
    versions = f'python_version="{platform.python_version()}",version="{__version__}"'
    assert text.count(versions) == 1
    return text.replace(versions, 'python_version="3.x.y",version="x.y.z"')


def test_the_exposition_is_the_golden_one(update_golden: bool) -> None:  # noqa: FBT001 - a fixture
    if update_golden:
        GOLDEN.write_text(exposition(), encoding="utf-8")
    assert exposition() == GOLDEN.read_text(encoding="utf-8")


def test_every_declared_family_occurs_with_its_labels_in_the_golden_exposition() -> None:
    values = []
    for metric in text_string_to_metric_families(GOLDEN.read_text(encoding="utf-8")):
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
        values.append((name, metric.type, labels))
    declared = [(family.name, family.kind, set(family.labels)) for family in metrics.families()]
    assert values == declared
