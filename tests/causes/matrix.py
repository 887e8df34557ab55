"""Stage all situations, or some, and print what fired as a table in Markdown.

PYTHONPATH=tests python -m causes.matrix [--only PATTERN]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from causes.cases import CASES
from causes.heard import Heard
from causes.stage import staged

_WRONG = " ✗"
_NONE = "none"
_HEADS = ("situation", "expected", "fired", "primary cause")


def table(heard: Iterable[Heard]) -> str:
    """One line for each GPU and node."""
    lines = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    return "\n".join(lines + [_row(one) for one in heard])


def _row(heard: Heard) -> str:
    wanted = heard.expected.alert
    cells = (
        heard.whose.title + (_WRONG if heard.wrong else ""),
        wanted.alert if wanted else "",
        ", ".join(f"{one.alert} ({one.severity})" for one in sorted(heard.fired)),
        f"`{heard.primary}`" if heard.primary else "",
    )
    return f"| {' | '.join(cell or _NONE for cell in cells)} |"


def main() -> int:
    """Stage and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="regular expression: situations of that name")
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        heard = staged([case for case in CASES if re.search(only, case.name)], Path(folder))
    sys.stdout.write(table(heard) + "\n")
    wrong = [one for one in heard if one.wrong]
    sys.stdout.writelines(f"{one.whose.title}: {one.wrong}\n" for one in wrong)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
