"""The node document as JSON, bounded in both directions."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Annotated, TypeVar, Union, get_args, get_origin, get_type_hints

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.jsontext import checked, parsed
from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.prescription.model import REFUSALS, Prescription, Refusal, Score

Found = TypeVar("Found")
NODE_PATH = "/api/v1/node"
JOBS_PATH = "/api/v1/jobs"
STACKS_PATH = "/api/v1/stacks"
MOST_BYTES = 16 * 2**20
"""Sixteen GPUs are 35 kB."""
MOST_ITEMS = 1024
"""Of a list or a mapping: GPUs, pids, owners. The rest is left out."""
MOST_CHARACTERS = 1024
"""Of a text; the longest remedy has a third of it."""
MAX_INTEGER = 2**63
"""Larger integers are unknown (null): no counter has more bits, and JSON of them is not read."""


def document(found: object, digits: int | None = None) -> dict[str, object]:
    """`found`, of the model or a mapping, as `jsontext.dumps` takes it.

    With `digits`, it is short: numbers are rounded to that many decimals, or to those in a field's
    metadata (`digits`), and fields without a value are left out, unless their metadata has `null`.
    """
    if is_dataclass(found):
        own = [(one.name, getattr(found, one.name), one.metadata) for one in fields(found)]
        own += [(name, value, MappingProxyType({})) for name, value in _derived(found).items()]
        values = ((n, _written(v, digits and m.get("digits", digits)), m) for n, v, m in own)
        return {n: v for n, v, m in values if not (v is None and digits) or m.get("null")}
    items = islice(found.items(), MOST_ITEMS) if isinstance(found, Mapping) else ()
    pairs = ((f"{name}"[:MOST_CHARACTERS], _written(value, digits)) for name, value in items)
    return {name: value for name, value in pairs if value is not None}


def _written(found: object, digits: int | None) -> object:
    """A value of a document, within bounds; None if it is unknown."""
    if is_dataclass(found) or isinstance(found, Mapping):
        return document(found, digits)
    if isinstance(found, tuple | list):
        items = (_written(one, digits) for one in found[:MOST_ITEMS])
        return [one for one in items if one is not None]
    if isinstance(found, float) and digits:
        return round(found, digits)
    if isinstance(found, int) and abs(found) > MAX_INTEGER:
        return None
    return found[:MOST_CHARACTERS] if isinstance(found, str) else found


def _derived(found: object) -> dict[str, object]:
    """Members of a JSON object beside the fields of `found`."""
    if isinstance(found, Prescription):
        return {"text": words.in_full(found)}
    if isinstance(found, Refusal):
        return {"text": REFUSALS.get(found.reason, found.reason)}
    if isinstance(found, Score):
        return {"text": words.outcome(found), "error_ratio": found.error_ratio}
    return {}


def node_in(text: bytes) -> Node:
    """The node that `text` describes: see `read`. Raises ValueError if it is no such document."""
    return read(Node, parsed(text))


def read(kind: type[Found], given: object) -> Found:
    """The `kind`, a class of a model, that JSON describes, with texts that can be printed.

    Fields that this version does not know are passed over. Raises ValueError if `given` is no such
    document, or has a value of another type or out of range.
    """
    try:
        return _object(kind, given)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{error}") from error


def _read(kind: type[object], given: object) -> object:
    """`given` as a `kind`: a class of the model, or the type of one of its fields."""
    base, arguments = get_origin(kind), get_args(kind)
    if base in (Union, types.UnionType):
        return None if given is None else _read(arguments[0], given)
    if base in (tuple, list):
        return base(_read(arguments[0], one) for one in checked(list, given)[:MOST_ITEMS])
    if base in (Mapping, dict):
        pairs = islice(checked(dict, given).items(), MOST_ITEMS)
        return {_read(str, name): _read(arguments[1], one) for name, one in pairs}
    if base is Annotated:
        return _number(float, given, *arguments[1])
    if kind is str:
        return printable(checked(str, given), MOST_CHARACTERS)
    return _number(kind, given) if issubclass(kind, int | float) else _object(kind, given)


def _object(kind: Callable[..., Found], given: object) -> Found:
    found = checked(dict, given)
    return kind(**{n: _read(hint, found[n]) for n, hint in _hints(kind).items() if n in found})


@cache
def _hints(kind: Callable[..., object]) -> Mapping[str, type[object]]:
    return get_type_hints(kind, include_extras=True)


def _number(kind: type[float], given: object, *ends: float) -> float:
    least, most = ends or (-math.inf, math.inf)
    number = given if kind is float and type(given) is int else checked(kind, given)
    if not (math.isfinite(number) and least <= number <= most):
        raise ValueError(f"{number} is out of range")
    return number
