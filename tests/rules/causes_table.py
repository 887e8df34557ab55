"""The list of all causes in the documentation, written from the annotations of the alerts."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import promql_parser as promql

from rules.parsed import Rule, rules

SEVERITIES = ("critical", "warning", "info")
RUNBOOKS = Path(__file__).parents[2] / "rules/runbooks"

_WHOSE = re.compile(r"^GPU .*?\(\{\{.*?\}\}\) ")
_LOSS = re.compile(r"^(is idle \{\{[^}]*\}\} of the time|loses \{\{[^}]*\}\} of its throughput): ")
_OF_ONE_GPU = re.compile(r"\{\{- .*\{\{ end \}\}$")
_SENTENCE = re.compile(r"(?<=[.?]) ")
_OF_CAUSE = "{{ $labels.cause }}"
_CHAIN = re.compile(r"\{\{- if eq \$labels\.cause .*?\{\{- end \}\}", re.DOTALL)
_BRANCH = re.compile(r'if eq \$labels\.cause "(\w+)" \}\}(.*?)(?=\{\{- (?:else|end))', re.DOTALL)


@cache
def pack() -> tuple[Rule, ...]:
    """All rules; reading them takes a second."""
    return tuple(rules())


@cache
def alerts() -> tuple[Rule, ...]:
    """The alerts; one that takes its cause from its expression once for each of its causes."""
    return tuple(one for rule in pack() if rule.is_alert for one in _by_cause(rule))


def names_cause(rule: Rule) -> bool:
    """Whether alerts of several causes share the name, so that each has a runbook of its own."""
    return page(rule) != rule.name


def page(rule: Rule) -> str:
    """The name of the alert's runbook."""
    return rule.annotations["runbook_url"].rpartition("/")[2].removesuffix(".md")


@cache
def shared_names() -> str:
    """Names of the alerts that several causes share, as a pattern."""
    return "|".join(sorted({rule.name for rule in alerts() if names_cause(rule)}))


def _by_cause(rule: Rule) -> list[Rule]:
    if _OF_CAUSE not in rule.annotations["runbook_url"]:
        return [rule]
    return [_with_cause(rule, cause) for cause in causes_of(rule)]


def causes_of(rule: Rule) -> list[str]:
    """The causes that an alert reports: that of its label, or those that its expression selects."""
    if "cause" in rule.labels:
        return [rule.labels["cause"]]
    if not names_cause(rule):
        return []
    asked = [item for name, items in rule.selected if name == "gpu:cause:order" for item in items]
    lost = [item for name, items in rule.selected if "lost_ratio" in name for item in items]
    orders = [one.labels for one in pack() if one.name == "gpu:cause:order"]
    named = [value for label, value in lost if label == "cause" and "|" not in value]
    told = [order["cause"] for order in orders if set(asked) & order.items()]
    return list(dict.fromkeys([*named, *told]))


def _with_cause(rule: Rule, cause: str) -> Rule:
    texts = {name: of_cause(text, cause) for name, text in rule.annotations.items()}
    of_rule = {"labels": {**rule.labels, "cause": cause}, "annotations": texts}
    return Rule(rule.file, rule.group, {**rule.fields, **of_rule, "expr": _part(rule, cause)})


def _part(rule: Rule, cause: str) -> str:
    """The part of the expression that is about the cause, by name or by its symptom."""
    parts = _parts(rule.expression)
    named = [part for part in parts if f'cause="{cause}"' in part]
    (found,) = named or [part for part in parts if "gpu:cause:order" in part]
    return found


def _parts(node: promql.Expr) -> list[str]:
    """The operands of its outermost `or`."""
    if isinstance(node, promql.BinaryExpr) and f"{node.op}" == "or":
        return [*_parts(node.lhs), *_parts(node.rhs)]
    return [f"{node}"]


def of_cause(text: str, cause: str) -> str:
    """What an annotation says of this cause. Raises KeyError if it says nothing of it."""
    found = _CHAIN.sub(lambda chain: dict(_BRANCH.findall(chain[0]))[cause].rstrip(), text)
    return found.replace(_OF_CAUSE, cause)


def variants(runbook: str) -> list[Rule]:
    """The alerts that link to that runbook, the worst first."""
    found = [rule for rule in alerts() if page(rule) == runbook]
    return sorted(found, key=lambda rule: SEVERITIES.index(rule.labels["severity"]))


def severities(runbook: str) -> list[str]:
    """Of the alerts that link to that runbook, the worst first."""
    return list(dict.fromkeys(rule.labels["severity"] for rule in variants(runbook)))


def signal_and_remedy(description: str) -> tuple[str, str]:
    """The first sentence without the GPU, its owner and its loss; and all others.

    What is said of one GPU at the end is no remedy for all of them.
    """
    said = _OF_ONE_GPU.sub("", " ".join(description.split())).rstrip()
    said = _LOSS.sub("", _WHOSE.sub("", said))
    signal, *remedy = _SENTENCE.split(said, maxsplit=1)
    return signal[:1].upper() + signal[1:], "".join(remedy)


def causes() -> list[tuple[str, Rule]]:
    """Each cause and its worst alert: in the order of the causes, then those that are beside it."""
    order = {
        rule.labels["cause"]: float(rule.fields["expr"].removeprefix("vector(").rstrip(")"))
        for rule in pack()
        if rule.name == "gpu:cause:order"
    }
    found = {
        rule.labels["cause"]: variants(page(rule))[0] for rule in alerts() if "cause" in rule.labels
    }
    return sorted(found.items(), key=lambda item: order.get(item[0], float("inf")))


def table(runbooks: str) -> str:
    """The causes as a Markdown list; `runbooks`: the folder, for links."""
    return "\n".join(_line(cause, rule, runbooks) for cause, rule in causes())


def _line(cause: str, rule: Rule, runbooks: str) -> str:
    signal, _ = signal_and_remedy(rule.annotations["description"])
    return f"- `{cause}`, [{rule.name}]({runbooks}/{page(rule)}.md). {signal}"
