"""Rule files as data: rules by group, expressions as trees."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import promql_parser as promql
import yaml

from gpu_bottleneck_exporter import rulepack
from support.tools import require

Node = TypeVar("Node", bound=promql.Expr)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule and where it stands."""

    file: str
    group: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        told = {**self.fields.get("labels", {}), "": self.name}
        return "-".join(told[key] for key in ("", "cause", "blind", "severity") if key in told)

    @property
    def name(self) -> str:
        """What it records or alerts of."""
        return str(self.fields.get("record") or self.fields["alert"])

    @property
    def is_alert(self) -> bool:
        return "alert" in self.fields

    @property
    def labels(self) -> Mapping[str, str]:
        return dict(self.fields.get("labels", {}))

    @property
    def annotations(self) -> Mapping[str, str]:
        return dict(self.fields.get("annotations", {}))

    @property
    def expression(self) -> promql.Expr:
        return promql.parse(self.fields["expr"])

    def nodes(self, kind: type[Node]) -> list[Node]:
        return nodes(self.expression, kind)

    @property
    def reads(self) -> set[str]:
        """The metrics that it selects."""
        return {name for node in self.nodes(promql.VectorSelector) if (name := node.name)}

    @property
    def selected(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Of each selector the metric, or the pattern of its name, and the labels it asks for."""
        found = []
        for node in self.nodes(promql.VectorSelector):
            asked = [(matcher.name, matcher.value) for matcher in node.matchers.matchers]
            name = node.name or next(value for label, value in asked if label == "__name__")
            found.append((name, [one for one in asked if one[0] != "__name__"]))
        return found


def nodes(expression: promql.Expr, kind: type[Node]) -> list[Node]:
    """Parts of an expression, in reading order."""
    found: list[Node] = []

    def visit(node: promql.Expr) -> None:
        if isinstance(node, kind):
            found.append(node)

    promql.walk(expression, visit)
    return found


def groups(text: str) -> list[dict[str, Any]]:
    """The groups of a rule file."""
    # In C: the one in Python takes half a second for the pack.
    return list(yaml.load(text, Loader=yaml.CSafeLoader)["groups"])


def rules(files: Mapping[str, str] | None = None) -> list[Rule]:
    """All rules of `files`, else of the pack."""
    return [
        Rule(name, group["name"], fields)
        for name, text in (rulepack.files() if files is None else files).items()
        for group in groups(text)
        for fields in group["rules"]
    ]


def seconds(text: str) -> float:
    """A Prometheus duration."""
    # Its parse_duration takes milliseconds for microseconds; its parser does not.
    matrix = promql.parse(f"up[{text}]")
    assert isinstance(matrix, promql.MatrixSelector)
    return matrix.range.total_seconds()


def durations(rule: Rule) -> Iterator[timedelta]:
    """Ranges, offsets and steps of an expression, in a fixed order."""
    for matrix in rule.nodes(promql.MatrixSelector):
        yield matrix.range
    for selector in rule.nodes(promql.VectorSelector):
        yield selector.offset or timedelta()
    for subquery in rule.nodes(promql.SubqueryExpr):
        yield subquery.range or timedelta()
        yield subquery.step or timedelta()
        yield subquery.offset or timedelta()


def check(folder: Path, *texts: str, lint: str = "duplicate-rules") -> None:
    """Let promtool check rule files; raises AssertionError with what it says."""
    paths = [folder / f"{number}.yml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    command = [require("promtool", "prometheus"), "check", "rules", "--lint-fatal"]
    command += [f"--lint={lint}", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
