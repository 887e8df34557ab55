from __future__ import annotations

from pathlib import Path

import pytest

from tables.documents import DOCUMENTS, tables
from tables.splice import put, renewed, section

BEGIN, END = "<!-- some: begin -->\n", "<!-- some: end -->"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.parent.name)
def test_every_table_is_up_to_date(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert renewed(text, tables(path)) == text, "run `make generate`"


def test_every_table_stands_somewhere() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    for name, table in tables(DOCUMENTS[0]).items():
        assert any(f"<!-- {name}: begin -->" in text for text in texts), name
        assert len(table.splitlines()) > 2


def test_a_section_is_put_between_its_markers(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(f"größer\n{BEGIN}old\n{END}\nafter\n", encoding="utf-8")
    for _ in range(2):
        put(path, {"some": "new", "others": "not there"})
        assert path.read_text(encoding="utf-8") == f"größer\n{BEGIN}new\n{END}\nafter\n"
    assert section(path.read_text(encoding="utf-8"), "some") == "new\n"


@pytest.mark.parametrize(
    "text", ["", BEGIN, END, END + BEGIN, 2 * (BEGIN + END), END + BEGIN + END, BEGIN.strip() + END]
)
def test_a_file_without_the_markers_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "README.md"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"README\.md") as failed:
        put(path, {"some": "new"})
    assert "\n" not in str(failed.value)
    assert path.read_text(encoding="utf-8") == text
    with pytest.raises(ValueError, match="once"):
        section(text, "some")
