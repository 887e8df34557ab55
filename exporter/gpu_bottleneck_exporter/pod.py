"""Whether we run in a pod: remedies differ there."""

from __future__ import annotations

import os

_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""Set by the kubelet in every container."""


def in_a_pod() -> bool:
    """Whether a kubelet started us."""
    return _VARIABLE in os.environ
