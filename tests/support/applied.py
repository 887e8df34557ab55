"""The size of an object in the annotation that `kubectl apply` keeps of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

MOST_APPLIED_BYTES = 262_144 // 2
"""Half of what Kubernetes allows all annotations of an object: the rest is room to grow."""


def applied_bytes(item: Mapping[str, object]) -> int:
    """Bytes of the object as JSON, with the characters that Go escapes."""
    text = json.dumps(item, separators=(",", ":"), ensure_ascii=False)
    return len(re.sub("[<>&]", r"\\u0000", text).encode())
