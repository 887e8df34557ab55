"""Links of all documents lead somewhere, and the worked example of a cause is in the files."""

from __future__ import annotations

import re
from pathlib import Path

from support.offenders import each

ROOT = Path(__file__).parents[1]
FOLDERS = ("exporter", "grafana", "helm", "rules", "tests")
PAGES = sorted(
    page
    for place in ("*.md", *(f"{folder}/**/*.md" for folder in FOLDERS))
    for page in ROOT.glob(place)
    if "node_modules" not in page.parts
)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@each(PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("https://", "http://")):
            to = (page.parent / target).resolve() if target else page
            assert to.exists(), target
            assert not anchor or anchor in anchors(to), f"{target}#{anchor}"


def test_the_worked_example_of_a_cause_is_in_the_files() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    files = re.split(r"^--- (\S+).*\n", diff, flags=re.MULTILINE)[1:]
    assert len(files) == 12
    for name, lines in zip(files[::2], files[1::2], strict=True):
        there = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert [line for line in lines.splitlines() if line[1:] not in there] == [], name
