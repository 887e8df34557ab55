"""Whether we run in a pod: what is to be done differs there."""

from __future__ import annotations

import os

_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""The kubelet sets it in every container."""


def in_a_pod() -> bool:
    """Whether a kubelet started us."""
    return _VARIABLE in os.environ
