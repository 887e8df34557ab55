"""Everything that was measured, as JSON: for looking into what went wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from prescriptions.measure import Glance, Pair
from prescriptions.rows import checks, row


def keep(path: Path, found: Pair | Glance) -> None:
    """Append `found` to the file, as one line."""
    told: dict[str, Any] = {"row": asdict(row(found))} if isinstance(found, Pair) else {}
    told["checks"] = [asdict(one) for one in checks(found)]
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({**told, "found": plain(found)}, ensure_ascii=False) + "\n")


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever was measured
    """`value` as JSON can have it, with all that lies within."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {_key(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    return value


def _key(key: object) -> str:
    if isinstance(key, Enum):
        return f"{key.value}"
    return ":".join(map(str, key)) if isinstance(key, tuple) else f"{key}"
