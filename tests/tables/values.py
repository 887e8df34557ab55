"""Values of the chart, as they stand in its README."""

from __future__ import annotations

import json

from helm import commented
from helm.commented import Value

_LONGEST = 60
"""Characters of a default that is shown; values.yaml has the others."""


def table() -> str:
    """All values as a Markdown list, without those of a monitor that are as another's."""
    text = commented.VALUES.read_text(encoding="utf-8")
    return "\n".join(
        _line(value) for value in commented.values(text) if value.key[:11] != "podMonitor."
    )


def _line(value: Value) -> str:
    default = json.dumps(value.default, ensure_ascii=False)
    shown = f" (`{default}`)" if value.default not in ("", {}, []) else ""
    return f"- `{value.key}`{shown if len(default) <= _LONGEST else ''}: {value.comment}"
