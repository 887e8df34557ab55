"""Which tests start a process, listen on a socket or measure: `make check` leaves them out.

They are marked `processes`, as their code or their fixtures name, however deep in the helpers, a
module that does so. What escapes that is marked by hand: with `--no-processes`, it fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

TESTS = Path(__file__).parents[1]
_STARTING = (
    *("http.server", "multiprocessing", "pexpect", "playwright", "socket", "subprocess"),
    *("gpu_bottleneck_exporter.demo.run", "gpu_bottleneck_exporter.web.listen", "support.judging"),
)
"""How names of modules begin."""
_EVENTS = {
    *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"),
    "socket.bind",
}


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark those that start something."""
    fields: dict[object, bool] = {}
    judged = cache(lambda one: starts(one, fields))
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = item._fixtureinfo.name2fixturedefs.values()
            used = [item.function, *(fixture.func for (*_, fixture) in fixtures)]
            if any(map(judged, used)):
                item.add_marker("processes")


def refuse() -> list[str]:
    """Names of events that start processes, recorded from now on."""
    values: list[str] = []
    sys.addaudithook(lambda event, _: values.append(event) if event in _EVENTS else None)
    return values


def starts(thing: object, known: dict[object, bool]) -> bool:
    """Whether it is of such a module, or names one."""
    thing = getattr(thing, "__wrapped__", thing)
    thing = getattr(getattr(thing, "hypothesis", None), "inner_test", thing)
    of_module = isinstance(thing, ModuleType)
    name = f"{getattr(thing, '__name__' if of_module else '__module__', '')}"
    if name.startswith(_STARTING):
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(thing, (FunctionType, type)) or TESTS not in Path(file or "/").parents:
        return False
    if thing not in known:
        known[thing] = False  # of those that name each other
        known[thing] = any(starts(item, known) for item in _named_by(thing))
    return known[thing]


def _named_by(thing: object) -> Iterator[object]:
    """Names used by a function or by the methods of a class."""
    if isinstance(thing, type):
        yield from (getattr(item, "fget", item) for item in vars(thing).values())
    if isinstance(thing, FunctionType):
        names = {*_names(thing.__code__)}
        for module in [thing.__globals__, *map(vars, _modules(thing, names))]:
            yield from (module[name] for name in names & module.keys())


def _modules(function: FunctionType, names: set[str]) -> list[ModuleType]:
    values = [function.__globals__.get(name) for name in names]
    return [item for item in values if isinstance(item, ModuleType)]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
