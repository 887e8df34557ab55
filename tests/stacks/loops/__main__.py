"""Runs a loop: `python -m stacks.loops MODULE WORD ...`.

What `main` of the module takes; without one, FUNCTION [WHERE]: one of its `LOOPS`, or of its
functions, and a place of `common.placed`.
"""

from __future__ import annotations

import importlib
import sys

from stacks.loops.gpu import run

if __name__ == "__main__":
    module = importlib.import_module(f"stacks.loops.{sys.argv[1]}")
    if hasattr(module, "main"):
        module.main(*sys.argv[2:])
    else:
        run(getattr(module, "LOOPS", vars(module)), *sys.argv[2:])
