"""Static checks of many things in one test, which names all that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

Item = TypeVar("Item")


def each(
    items: Iterable[Item], name: Callable[[Item], str] = str
) -> Callable[[Callable[[Item], None]], Callable[[], None]]:
    """A test of all `items` at once, which says by its `name` what is wrong with each."""
    every = list(items)

    def of_all(test: Callable[[Item], None]) -> Callable[[], None]:
        def judge() -> None:
            wrong = [f"{name(item)}: {fault}" for item in every if (fault := _fault(test, item))]
            assert not wrong, "\n".join(wrong)

        judge.__doc__ = test.__doc__
        return judge

    return of_all


def _fault(test: Callable[[Item], None], item: Item) -> str | None:
    try:
        test(item)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is the item's fault
        return repr(error)
    return None
