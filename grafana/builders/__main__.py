"""Writes the dashboards: `PYTHONPATH=grafana python -m builders`."""

from __future__ import annotations

import json
from pathlib import Path

from builders import exporter, fleet, gpu

FOLDER = Path(__file__).parents[1]


def rendered() -> dict[str, str]:
    """Name and text of each file."""
    built = [module.dashboard() for module in (fleet, gpu, exporter)]
    return {
        f"{board.name}.json": json.dumps(board.json(), indent=2, ensure_ascii=False) + "\n"
        for board in built
    }


if __name__ == "__main__":
    for name, text in rendered().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
