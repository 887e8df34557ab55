"""The type variable of generic functions and classes, so that each module needs none of its own."""

from typing import TypeVar

T = TypeVar("T")
