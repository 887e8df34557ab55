"""The node document as JSON, bounded in both directions."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Annotated, Union, get_args, get_origin, get_type_hints

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.generics import T
from gpu_bottleneck_exporter.jsontext import checked, parsed
from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.prescription.model import REFUSALS, Prescription, Refusal, Score

NODE_PATH = "/api/v1/node"
JOBS_PATH = "/api/v1/jobs"
STACKS_PATH = "/api/v1/stacks"
MAX_DOCUMENT_BYTES = 16 * 2**20
"""Bound on a document; 16 GPUs take 35 kB."""
MAX_ITEMS = 1024
"""Bound on a list or mapping, such as GPUs; longer ones are truncated."""
MAX_CHARACTERS = 1024
"""Bound on a string, three times the longest remedy; longer ones are truncated."""
MAX_INTEGER = 2**63
"""Bound on integers; larger ones become null, as no counter has more bits."""


def document(source: object, digits: int | None = None) -> dict[str, object]:
    """A dataclass or mapping as a dictionary for `jsontext.dumps`.

    With `digits`, numbers are rounded to that number of decimals or the field's own, and None is
    omitted unless the metadata has `null`.
    """
    if is_dataclass(source):
        own = [
            (field.name, getattr(source, field.name), field.metadata) for field in fields(source)
        ]
        own += [(name, value, MappingProxyType({})) for name, value in _derived(source).items()]
        values = ((n, _encoded(v, digits and m.get("digits", digits)), m) for n, v, m in own)
        return {n: v for n, v, m in values if not (v is None and digits) or m.get("null")}
    items = islice(source.items(), MAX_ITEMS) if isinstance(source, Mapping) else ()
    pairs = ((f"{name}"[:MAX_CHARACTERS], _encoded(value, digits)) for name, value in items)
    return {name: value for name, value in pairs if value is not None}


def _encoded(value: object, digits: int | None) -> object:
    """A bounded value of a document; None if unknown."""
    if is_dataclass(value) or isinstance(value, Mapping):
        return document(value, digits)
    if isinstance(value, tuple | list):
        items = (_encoded(item, digits) for item in value[:MAX_ITEMS])
        return [item for item in items if item is not None]
    if isinstance(value, float) and digits:
        return round(value, digits)
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return None
    return value[:MAX_CHARACTERS] if isinstance(value, str) else value


def _derived(source: object) -> dict[str, object]:
    if isinstance(source, Prescription):
        return {"text": words.describe_prescription(source)}
    if isinstance(source, Refusal):
        return {"text": REFUSALS.get(source.reason, source.reason)}
    if isinstance(source, Score):
        return {"text": words.outcome(source), "error_ratio": source.error_ratio}
    return {}


def node_in(text: bytes) -> Node:
    """Decode a node document. Raises ValueError as `read` does."""
    return read(Node, parsed(text))


def read(model: type[T], value: object) -> T:
    """Decode JSON into a dataclass of a model, with printable strings; skips unknown fields.

    Raises ValueError for a malformed document, a wrong type or range.
    """
    try:
        return _object(model, value)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{error}") from error


def _read(kind: type[object], value: object) -> object:
    """`value` as a dataclass of the model, or as the type of one of its fields."""
    base, arguments = get_origin(kind), get_args(kind)
    if base in (Union, types.UnionType):
        return None if value is None else _read(arguments[0], value)
    if base in (tuple, list):
        return base(_read(arguments[0], item) for item in checked(list, value)[:MAX_ITEMS])
    if base in (Mapping, dict):
        pairs = islice(checked(dict, value).items(), MAX_ITEMS)
        return {_read(str, name): _read(arguments[1], item) for name, item in pairs}
    if base is Annotated:
        return _number(float, value, *arguments[1])
    if kind is str:
        return printable(checked(str, value), MAX_CHARACTERS)
    return _number(kind, value) if issubclass(kind, int | float) else _object(kind, value)


def _object(model: Callable[..., T], value: object) -> T:
    members = checked(dict, value)
    hints = _hints(model).items()
    return model(**{name: _read(hint, members[name]) for name, hint in hints if name in members})


@cache
def _hints(model: Callable[..., object]) -> Mapping[str, type[object]]:
    return get_type_hints(model, include_extras=True)


def _number(kind: type[float], value: object, *bounds: float) -> float:
    low, high = bounds or (-math.inf, math.inf)
    number = value if kind is float and type(value) is int else checked(kind, value)
    if not (math.isfinite(number) and low <= number <= high):
        raise ValueError(f"{number} is out of range")
    return number
