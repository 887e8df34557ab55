"""Renew the tables in the documents: `PYTHONPATH=tests python -m tables`."""

from __future__ import annotations

from tables.documents import DOCUMENTS, tables
from tables.splice import renewed

for path in DOCUMENTS:
    text = path.read_text(encoding="utf-8")
    path.write_text(renewed(text, tables(path)), encoding="utf-8")
