"""The type variable of all generic functions and classes."""

from typing import TypeVar

T = TypeVar("T")
