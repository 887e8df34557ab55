"""Kubernetes' own schemas, by version."""

from __future__ import annotations

import functools
import json

import kubernetes_validate

from helm.chart import Object

VERSIONS = ("1.25", "1.29", "1.30", "1.33", "1.37")
"""The oldest that the chart takes, to the newest."""
CUSTOM = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


@functools.cache
def validate(text: str, version: str) -> None:
    """Raises where Kubernetes would refuse the object, unknown fields included."""
    kubernetes_validate.validate(json.loads(text), version, strict=True)


def assert_valid(found: Object, version: str) -> None:
    if found["kind"] not in CUSTOM:
        validate(json.dumps(found, sort_keys=True), version)
