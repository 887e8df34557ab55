"""Renew the expectations beside the captures: `PYTHONPATH=tests python -m replay`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from replay.build import build
from replay.judged import CAPTURES, judged, load

with tempfile.TemporaryDirectory() as folder:
    for capture in CAPTURES:
        library = build(capture, Path(folder) / capture.stem)
        capture.with_suffix(".txt").write_text(judged(load(library)), encoding="utf-8")
