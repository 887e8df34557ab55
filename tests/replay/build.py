"""Builds a stand-in for the driver's library from a capture: `python -m replay.build FILE FOLDER`.

`REPLAY_PIDS` names the processes that hold the GPUs. Answers change as they did during the
capture; after its end gauges and counters keep their last value, and rings repeat.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from fake_nvml.build import compiled
from gpu_bottleneck_exporter.driver.nvml import signatures
from gpu_bottleneck_exporter.driver.nvml.processuse import PROCESS_USE
from gpu_bottleneck_exporter.driver.nvml.queries import VALUES
from gpu_bottleneck_exporter.driver.nvml.signatures import TEXT, Signature

_SOURCE = Path(__file__).with_name("replay.c")
_FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
_FUNCTION_NOT_FOUND = 13
_ALL = (*signatures.OF_SYSTEM, *signatures.OF_DEVICES, signatures.LINK_STATE)
_SIGNATURES = {signature.name: signature for signature in _ALL}
_CLOCKS = ("realtime", "boottime")
_MEAN_SECONDS = 1.0
"""The interval of the GPM metrics that are replayed."""
_ANSWERED_AT = "s"
_PROCESS_RINGS = 100
"""The kind, in `replay.c`, of the first ring of processes: beyond those of samples."""
_KEY = re.compile(r"[0-9:]*/\w+(/[0-9.]+)*")
"""Device, function and arguments: keys become C strings."""
Line = dict[str, Any]


class Answer(NamedTuple):
    key: str
    ms: int
    code: int
    content: bytes = b""


def build(capture: Path, folder: Path) -> Path:
    """Compile a `libnvidia-ml.so.1` that answers as `capture` into `folder`."""
    lines = [json.loads(line) for line in capture.read_text(encoding="utf-8").splitlines()]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answers.h").write_text(_tables(lines), encoding="ascii")
    source = folder / "replay.c"
    source.write_text(f"{_SOURCE.read_text()}\n{_functions(lines)}", encoding="ascii")
    return compiled(f"the replay of {capture}", folder, [source], _FLAGS)


def _tables(lines: Sequence[Line]) -> str:
    calls = [line for line in lines if "call" in line]
    rows = sorted(answer for line in calls for answer in _answers(line))
    length = max(1.0, *(float(line.get("end") or line.get(_ANSWERED_AT, 0.0)) for line in lines))
    rings, samples = _rings(calls)
    text = [f"enum {{ ANSWERS = {len(rows)}, RINGS = {len(rings)} }};"]
    text.append(f"#define LENGTH_MS {round(length * 1000)}LL")
    text.append("static const struct answer answers[] = {")
    text += [f"  {_row(row)}," for row in rows]
    text += ["};", *samples, "static const struct ring rings[] = {", *rings, "  {0}};"]
    return "\n".join(text) + "\n"


def _row(answer: Answer) -> str:
    if not _KEY.fullmatch(answer.key):
        raise ValueError(f"not a call: {answer.key}")
    content = "".join(f"\\x{byte:02x}" for byte in answer.content)
    size = len(answer.content)
    return f'{{"{answer.key}", {answer.ms}u, {answer.code}, {size}u, "{content}"}}'


def _answers(line: Line) -> Iterator[Answer]:
    name, code = line["call"], line["code"]
    value: Any = line.get("value")
    key, ms = f"{line.get('device', '')}/{name}", round(1000 * line.get(_ANSWERED_AT, 0.0))
    if name == signatures.FIELDS:
        for number, scope, result, *outcome in value:
            content = _field(*outcome) if outcome else b""
            yield Answer(f"{key}/{number}/{scope}", ms, result, content)
    elif name == signatures.GPM_METRICS:
        if line["args"] == [_MEAN_SECONDS]:
            for metric, result, *outcome in value:
                mean = struct.pack("=d", _finite(*outcome)) if outcome else b""
                yield Answer(f"{key}/{metric}", ms, result, mean)
    else:
        full = "/".join((key, *map(str, line["args"])))
        yield Answer(full, ms, code, _content(name, line["args"], value) if code == 0 else b"")


def _content(name: str, arguments: Sequence[int], value: Any) -> bytes:  # noqa: ANN401 - of JSON
    """The bytes that a function writes, without those that its caller presets."""
    if name in signatures.PROCESS_LISTS:
        return b"".join(struct.pack("=8xQII", *entry, *[0] * (3 - len(entry))) for entry in value)
    if name not in _SIGNATURES or value is None:
        return b""
    # Versions of a structure are signatures of one name.
    layouts = (s for s in _ALL if s.name == name and _takes(s, arguments))
    signature = next(layouts, _SIGNATURES[name])
    if signature.outputs == (TEXT,):
        return f"{value}".encode()
    members = value if isinstance(value, list) else [value]
    encoded = [m.encode() if isinstance(m, str) else m for m in members]
    preset = signature.presets[0]
    layout = struct.Struct("=" + "".join(signature.outputs))
    return layout.pack(*preset, *encoded)[4 * len(preset) :]


def _takes(signature: Signature, arguments: Sequence[int]) -> bool:
    count = len(signature.arguments[0])
    return tuple(arguments[count:]) in signature.presets


def _field(kind: int, value: float | None) -> bytes:
    number = _finite(value) if VALUES[kind] == "d" else value
    return struct.pack(f"=I{VALUES[kind]}", kind, number)


def _finite(value: float | None) -> float:
    """`value`; what JSON cannot hold was NaN."""
    return float("nan") if value is None else value


def _rings(calls: Sequence[Line]) -> tuple[list[str], list[str]]:
    """The table of rings, and the arrays of their samples."""
    rings: dict[str, dict[str, Any]] = {}
    for line in calls:
        value = line.get("value")
        if line["call"] == signatures.SAMPLES and value:
            ring = rings.setdefault(f"{line['device']}/{line['args'][0]}", {**value, "samples": []})
            ring["samples"] += value["samples"]
        elif line["call"] in PROCESS_USE and value:
            kind = _PROCESS_RINGS + [*PROCESS_USE].index(line["call"])
            ring = rings.setdefault(f"{line['device']}/{kind}", {**value, "samples": []})
            ring["type"] = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            ring["samples"] += [[at, number << 32 | sm] for at, number, sm, *_ in value["samples"]]
    rows, arrays = [], []
    for number, (key, ring) in enumerate(rings.items()):
        layout = VALUES.get(ring["type"], "Q")
        values = (
            (at, int.from_bytes(struct.pack(f"={layout}", sample), sys.byteorder))
            for at, sample in sorted(ring["samples"])
        )
        body = ", ".join(f"{{{at}LL, {value}ULL}}" for at, value in values)
        clock, count = _CLOCKS.index(ring["clock"]), len(ring["samples"])
        arrays.append(f"static const struct ring_sample ring_{number}[] = {{{body or '{0}'}}};")
        rows.append(f'  {{"{key}", {clock}, {ring["type"]}u, {count}u, ring_{number}}},')
    return rows, arrays


def _functions(lines: Sequence[Line]) -> str:
    """The functions that the library exports beside those of `replay.c`."""
    symbols = next((line["symbols"] for line in lines if "symbols" in line), None)
    absent = {line["call"] for line in lines if line.get("code") == _FUNCTION_NOT_FOUND}
    names = [*_SIGNATURES, *signatures.PROCESS_LISTS]
    exported = [n for n in names if (n in symbols if symbols else n not in absent)]
    return "\n".join(map(_function, exported))


def _function(name: str) -> str:
    if name in signatures.PROCESS_LISTS:
        stride = 24 if name.endswith(("_v2", "_v3")) else 16
        return (
            f"API int {name}(word device, unsigned *count, char *entries)\n"
            f'{{\n  return list_processes(device, "{name}", count, entries, {stride});\n}}\n'
        )
    signature = _SIGNATURES[name]
    has_device = "false" if signature in signatures.OF_SYSTEM else "true"
    head = f"API int {name}(word a, word b, word c, word d, word e, word f)\n{{\n"
    words = "  const word words[] = {a, b, c, d, e, f};\n"
    return f"{head}{words}  return {_answering(signature, has_device)};\n}}\n"


def _answering(signature: Signature, has_device: str) -> str:
    if signature.outputs == (TEXT,):
        return f'answer_text("{signature.name}", words, {has_device})'
    sizes = ", ".join(f"{struct.calcsize(f'={output}')}" for output in signature.outputs)
    counts = f"{len(signature.arguments[0])}, {len(signature.presets[0])}"
    return (
        f'answer_plain("{signature.name}", words, {has_device}, {counts}, '
        f"(const unsigned[]){{{sizes}, 0}})"
    )


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]), Path(sys.argv[2]))}\n")
