"""Detects a Kubernetes pod, in which remedies differ."""

from __future__ import annotations

import os


def in_a_pod() -> bool:
    """Whether a kubelet started this process: it sets the variable."""
    return "KUBERNETES_SERVICE_HOST" in os.environ
