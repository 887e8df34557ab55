"""Line tables of Python code that no compiler writes."""

from __future__ import annotations

CODE_WITH_TABLE = """
def waits():
    os.read(0, 1)
waits.__code__ = waits.__code__.replace(co_linetable=bytes.fromhex(sys.argv[1]))
ready()
waits()
"""
"""A program that waits in a function with the line table of its argument, in hexadecimal digits."""


def entry(groups: int) -> bytes:
    """An entry with a step of this number of six-bit groups, all of whose bits are set."""
    return bytes([0x80 | 14 << 3 | 7]) + b"\x7e" + b"\x7f" * (groups - 2) + b"\x3f"
