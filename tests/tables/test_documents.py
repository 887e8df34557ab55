from __future__ import annotations

from pathlib import Path

import pytest

from tables.documents import DOCUMENTS, tables
from tables.splice import renewed


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.parent.name)
def test_every_table_is_up_to_date(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert renewed(text, tables(path)) == text, "run `make generate`"


def test_every_table_stands_somewhere() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    for name, table in tables(DOCUMENTS[0]).items():
        assert any(f"<!-- {name}: begin -->" in text for text in texts), name
        assert len(table.splitlines()) > 2
