"""The servers of `servers.yml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True, slots=True)
class Server:
    """A module here and its arguments."""

    module: str
    arguments: tuple[str, ...]
    venv: str
    programs: tuple[str, ...]
    """That it takes."""


def _server(run: str, venv: str = "light", needs: str = "") -> Server:
    module, *arguments = run.split()
    return Server(module, tuple(arguments), venv, tuple(needs.split()))


_TABLE = yaml.safe_load(Path(__file__).with_name("servers.yml").read_text(encoding="utf-8"))
SERVERS = {name: _server(**row) for name, row in _TABLE.items()}
