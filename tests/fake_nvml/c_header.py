"""The layout of a board as a C header."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from gpu_bottleneck_exporter.demo.board import layout
from support.board import CALLS, GRAPHICS, THROTTLE_REASONS
from support.models import KIND_MIG

_C_TYPES = {
    ctypes.c_uint16: "uint16_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_int32: "int32_t",
    ctypes.c_uint64: "uint64_t",
    ctypes.c_int64: "int64_t",
    ctypes.c_char: "char",
}


def c_header() -> str:
    """The layout as a C header: the structures above, their sizes asserted."""
    constants = {
        "BOARD_MAGIC": f"{layout.MAGIC:#x}ULL",
        "SLOT_NS": f"{layout.SLOT_NS}LL",
        "SLOTS": layout.SLOTS,
        "LANES": len(layout.LANES),
        "MAX_PROCESSES": layout.MAX_PROCESSES,
        "MAX_EVENTS": layout.MAX_EVENTS,
        "KIND_GPU": 0,
        "KIND_MIG": KIND_MIG,
        "PROCESS_COMPUTE": 0,
        "PROCESS_GRAPHICS": GRAPHICS,
    }
    lines = ["/* Generated from demo/board/layout.py. */", "#include <stdint.h>"]
    lines += [f"#define {name} {value}" for name, value in constants.items()]
    lines.append(_c_enum("lane", "LANE", layout.LANES))
    lines.append(_c_enum("throttle", "THROTTLE", THROTTLE_REASONS))
    lines.append(_c_enum("call", "CALL", CALLS))
    kinds = (layout.ProcessRecord, layout.Event, layout.GpuRecord, layout.Header)
    lines += [_c_struct(kind) for kind in kinds]
    return "\n".join(lines) + "\n"


def _c_enum(name: str, prefix: str, values: Sequence[str]) -> str:
    members = ", ".join(f"{prefix}_{value}" for value in values)
    return f"enum {name} {{ {members} }};"


def _c_struct(kind: type[ctypes.Structure]) -> str:
    name = f"board_{kind.__name__.removesuffix('Record').lower()}"
    members = [f"  {_c_member(str(field[0]), field[1])};" for field in kind._fields_]
    check = f'_Static_assert(sizeof(struct {name}) == {ctypes.sizeof(kind)}, "{name}");'
    return "\n".join([f"struct {name} {{", *members, "};", check])


def _c_member(name: str, kind: object) -> str:
    if isinstance(kind, type) and issubclass(kind, ctypes.Array):
        return f"{_c_type(kind._type_)} {name}[{kind._length_}]"
    return f"{_c_type(kind)} {name}"


def _c_type(kind: object) -> str:
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure):
        return f"struct board_{kind.__name__.removesuffix('Record').lower()}"
    return _C_TYPES[kind]  # type: ignore[index]
