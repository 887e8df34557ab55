"""Runs a server: `python -m stacks.servers MODULE NAME WORD ...`."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    importlib.import_module(f"stacks.servers.{sys.argv[1]}").main(*sys.argv[2:])
