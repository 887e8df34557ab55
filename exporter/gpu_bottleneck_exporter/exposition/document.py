"""A scrape as JSON: the fields of `once --json`."""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.samples import Sample

from gpu_bottleneck_exporter.jsontext import Document


def scrape_document(families: Iterable[Metric]) -> Document:
    """Families with their samples, under the names of the text format."""
    return {"families": [_family(metric) for metric in families]}


def _family(metric: Metric) -> Document:
    return {
        "name": f"{metric.name}_total" if metric.type == "counter" else metric.name,
        "type": metric.type,
        "help": metric.documentation,
        "samples": [_sample(sample) for sample in metric.samples],
    }


def _sample(sample: Sample) -> Document:
    value = float(sample.value)
    # As the text format writes them: a NaN that was measured is not the same as nothing measured.
    special = "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    shown = value if math.isfinite(value) else special
    return {"name": sample.name, "labels": sample.labels, "value": shown}
