"""The table of all causes in the documentation, written from the annotations of the alerts.

`PYTHONPATH=tests python -m rules.causes_table rules/README.md README.md` puts it in place. It is no
part of the package, which reads rules as text only: this needs PyYAML.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gpu_bottleneck_exporter.errors import ExporterError
from rules.parsed import Rule, rules

BEGIN = "<!-- causes: begin -->"
END = "<!-- causes: end -->"
SEVERITIES = ("critical", "warning", "info")
RUNBOOKS = Path(__file__).parents[2] / "rules/runbooks"

_WHOSE = re.compile(r"^GPU .*?\(\{\{.*?\}\}\) ")
_LOSS = re.compile(
    r"^(is idle \{\{[^}]*\}\} of the time|loses \{\{[^}]*\}\} of what it could do): "
)
_SENTENCE = re.compile(r"(?<=[.?]) ")


@cache
def pack() -> tuple[Rule, ...]:
    """All rules; reading them takes a second."""
    return tuple(rules())


def variants(name: str) -> list[Rule]:
    """The alerts of that name, the worst first."""
    found = [rule for rule in pack() if rule.is_alert and rule.name == name]
    return sorted(found, key=lambda rule: SEVERITIES.index(rule.labels["severity"]))


def severities(name: str) -> list[str]:
    """Of the alerts of that name, the worst first."""
    return list(dict.fromkeys(rule.labels["severity"] for rule in variants(name)))


def signal_and_remedy(description: str) -> tuple[str, str]:
    """The first sentence without the GPU, its owner and its loss; and all others."""
    said = _LOSS.sub("", _WHOSE.sub("", " ".join(description.split())))
    signal, *remedy = _SENTENCE.split(said, maxsplit=1)
    return signal[:1].upper() + signal[1:], "".join(remedy)


def causes() -> list[tuple[str, str]]:
    """Each cause and its alert: in the order of the causes, then those that are beside it."""
    order = {
        rule.labels["cause"]: float(rule.fields["expr"].removeprefix("vector(").rstrip(")"))
        for rule in pack()
        if rule.name == "gpu:cause:order"
    }
    alerts = {
        rule.labels["cause"]: rule.name
        for rule in pack()
        if rule.is_alert and "cause" in rule.labels
    }
    return sorted(alerts.items(), key=lambda item: order.get(item[0], float("inf")))


def table(runbooks: str) -> str:
    """The causes as a Markdown table; `runbooks`: the folder, for links."""
    head = ["| Cause | Alert | Severity | Signal | Remedy |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(_row(cause, name, runbooks) for cause, name in causes())])


def with_table(text: str, runbooks: str) -> str:
    """`text` with the table between the markers.

    Raises ExporterError when it does not have both markers, each once and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        raise ExporterError(f"it needs the lines {BEGIN} and {END}, each once and in this order")
    return f"{before}{BEGIN}\n{table(runbooks)}\n{END}{after}"


def updated(path: Path) -> str:
    """The text of file `path` with the table."""
    runbooks = os.path.relpath(RUNBOOKS, path.resolve().parent)
    return with_table(path.read_text(encoding="utf-8"), runbooks)


def main(arguments: Sequence[str]) -> int:
    """Rewrite the table in the files named; the exit status."""
    if not arguments:
        return _fail("name the files that hold the table")
    return max(map(_rewrite, map(Path, arguments)))


def _rewrite(path: Path) -> int:
    try:
        path.write_text(updated(path), encoding="utf-8")
    except (ExporterError, OSError, UnicodeDecodeError) as error:
        return _fail(f"{path}: {error}")
    return 0


def _row(cause: str, name: str, runbooks: str) -> str:
    said = signal_and_remedy(variants(name)[0].annotations["description"])
    signal, remedy = (text.replace("|", "\\|") for text in said)
    alert = f"[{name}]({runbooks}/{name}.md)"
    return f"| `{cause}` | {alert} | {', '.join(severities(name))} | {signal} | {remedy} |"


def _fail(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
