"""The English of the package and its tests: nouns first, one term of the field for one thing."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import gpu_bottleneck_exporter

PACKAGE = Path(gpu_bottleneck_exporter.__file__).parent
ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
UNREVISED = "grafana/", "rules/", "stacks/", "feeders/test_serving", "report/test_serving"
"""Tests whose texts are still as they were first written."""
RIDDLE = re.compile(
    r"\s*(Of|By|In|Between|For|At|From|As|So|Those|That|Where|With|Without|After|Until|Since|On|To"
    r"|Than|What|Who|Whose|Whom)\b"
)
"""The beginning of a docstring that leaves the noun to the name above it."""
VAGUE = re.compile(
    r"\b(somebody|nobody|whoever|anybody|everybody|so (?:many|long|much)|no more|hardly|mostly)\b",
    re.IGNORECASE,
)
RELATIVE = re.compile(r"\b(?:what|who|whom|whose)\b", re.IGNORECASE)
NOT_NOUN = re.compile("found|told|known|given|wanted|seen|one|did|had|said|asked|kept|named")
"""Names of variables that do not say what they hold."""
TIME = re.compile(r"INTERVAL|TIMEOUT|TTL|RETENTION|PAUSE|DELAY|DEADLINE|LIFETIME|PERIOD")
UNITS_OF_TIME = "_SECONDS", "_NS", "_MS", "_US", "_TICKS"
BY_MODULE = frozenset({"COLLECTOR", "FAMILIES"})
"""Constants that every module of a kind has, such as a collector's families."""
WORD = re.compile(r"[\w'-]+")
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        *(f"{name}/**/*.md" for name in ("exporter", "grafana", "helm", "rules")),
    )
    for path in ROOT.glob(pattern)
    if path.name not in {"CONTRIBUTING.md", "CHANGELOG.md"} and "node_modules" not in path.parts
)
"""Documents except the list of words to avoid, and history."""
MAX_WORDS = {PACKAGE: 40_900, TESTS: 27_500}
"""Docstrings and comments; 56 500 and 26 900 before they were rewritten."""
MAX_RELATIVE_PER_1000 = {PACKAGE: 0.6, TESTS: 12}
"""`what`, `who` and the like per 1 000 words; 15 and 21 before, 0 to 0.3 in well-kept exporters."""
MAX_CONSTANTS = 500
"""Constants of modules; 1 120 before."""
MAX_VAGUE_NAMES = 0.002
"""Share of assignments to names that are no nouns; 0.09 and 0.13 before."""
of_both = pytest.mark.parametrize("root", [PACKAGE, TESTS], ids=["package", "tests"])


class Text(NamedTuple):
    """A docstring or a comment."""

    place: str
    text: str
    is_comment: bool


def sources(root: Path = PACKAGE) -> Iterator[tuple[str, str]]:
    """Each module's path and text; the dashboards are built by code that is not shipped."""
    for path in sorted(root.rglob("*.py")):
        name = f"{path.relative_to(root)}"
        if not name.startswith(UNREVISED if root == TESTS else "dashboards"):
            yield name, path.read_text(encoding="utf-8")


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each, also of attributes and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield node.lineno, text


def texts(root: Path) -> Iterator[Text]:
    for name, source in sources(root):
        for line, text in docstrings(ast.parse(source)):
            yield Text(f"{name}:{line}", text, is_comment=False)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and "noqa" not in token.string:
                yield Text(f"{name}:{token.start[0]}", token.string.lstrip("# "), is_comment=True)


def assigned(tree: ast.AST) -> Iterator[str]:
    """Every name that functions assign."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id


def constants() -> Iterator[tuple[str, str, ast.expr]]:
    """Module, name and value of each constant of a module."""
    for module, source in sources():
        for statement in ast.parse(source).body:
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
                continue
            for target in (
                statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            ):
                if isinstance(target, ast.Name) and re.fullmatch("_?[A-Z][A-Z0-9_]+", target.id):
                    yield module, target.id, statement.value


@of_both
def test_docstrings_begin_with_a_noun_or_a_verb(root: Path) -> None:
    riddles = [
        f"{place}: {text.splitlines()[0]}"
        for place, text, is_comment in texts(root)
        if not is_comment and RIDDLE.match(text)
    ]
    assert not riddles, "\n".join(riddles)


@of_both
def test_texts_name_persons_and_quantities(root: Path) -> None:
    vague = [f"{place}: {word}" for place, text, _ in texts(root) for word in VAGUE.findall(text)]
    assert not vague, "\n".join(vague)


@of_both
def test_nouns_come_before_relative_clauses(root: Path) -> None:
    every = [text for _, text, _ in texts(root)]
    words = sum(len(WORD.findall(text)) for text in every)
    relative = sum(len(RELATIVE.findall(text)) for text in every)
    assert words <= MAX_WORDS[root]
    assert 1000 * relative / words <= MAX_RELATIVE_PER_1000[root]


def test_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for _, source in sources()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == set()


@of_both
def test_variables_are_nouns(root: Path) -> None:
    names = [name for _, source in sources(root) for name in assigned(ast.parse(source))]
    vague = Counter(name for name in names if NOT_NOUN.fullmatch(name))
    assert vague.total() / len(names) <= MAX_VAGUE_NAMES, vague


def test_names_of_tests_have_a_subject() -> None:
    tests = [
        f"{module}: {node.name}"
        for module, source in sources(TESTS)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    words = {name: name.replace("_", " ") for name in tests}
    assert [name for name, text in words.items() if VAGUE.search(text)] == []
    assert [name for name, text in words.items() if RELATIVE.search(text)] == []


def test_intervals_and_time_limits_have_units() -> None:
    numbers = [
        f"{module}: {name}"
        for module, name, value in constants()
        if isinstance(value, (ast.BinOp, ast.Constant)) and TIME.search(name)
        if not isinstance(value, ast.Constant) or isinstance(value.value, (int, float))
        if not name.endswith(UNITS_OF_TIME)
    ]
    assert numbers == []


def test_constants_earn_their_names() -> None:
    assert len(list(constants())) <= MAX_CONSTANTS


def test_intervals_of_the_sampler_are_fields_of_cadence() -> None:
    rooms = "accounting/", "collectors/", "feeders/", "prescription/", "sampling/", "schedule"
    assert [n for module, n, _ in constants() if module.startswith(rooms) and "INTERVAL" in n] == []


def test_a_public_constant_has_a_name_of_its_own() -> None:
    names = Counter(name for _, name, _ in constants() if name[0] != "_")
    assert {name for name, count in names.items() if count > 1} <= BY_MODULE


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.relative_to(ROOT)}")
def test_documents_are_not_vague(path: Path) -> None:
    generated_or_code = r"```.*?```|<!-- \w+: begin -->.*?<!-- \w+: end -->|`[^`]*`"
    text = re.sub(generated_or_code, "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert VAGUE.findall(text) == []
