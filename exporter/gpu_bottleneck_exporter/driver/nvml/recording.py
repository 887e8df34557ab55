"""Records the driver library's answers for replay in tests.

Needs no root, sets nothing, with a thread per GPU. Repeated answers are left out.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, product
from pathlib import Path

import pynvml

from gpu_bottleneck_exporter import __version__
from gpu_bottleneck_exporter.driver.nvml import gpm, signatures
from gpu_bottleneck_exporter.driver.nvml.condition import MAX_LINKS
from gpu_bottleneck_exporter.driver.nvml.library import Calls, address, c_function, load
from gpu_bottleneck_exporter.driver.nvml.processuse import (
    MAX_ROWS,
    PROCESS_USE,
    ProcessUseRequest,
)
from gpu_bottleneck_exporter.driver.nvml.queries import FIELD, VALUES, unanswered
from gpu_bottleneck_exporter.driver.nvml.rings import MAX_RING_SAMPLES
from gpu_bottleneck_exporter.driver.nvml.signatures import TEXT, Signature
from gpu_bottleneck_exporter.driver.protocol import Recording
from gpu_bottleneck_exporter.generics import T
from gpu_bottleneck_exporter.jsontext import Document

_POLL_SECONDS = 0.5
"""Interval between readings of rings, which hold 10 s."""
_REPEAT_SECONDS = 10.0
"""Interval between two readings of all fields, which distinguish counters."""
_HANG_SECONDS = 20.0
"""Time after the capture until a call counts as hung."""
_MAX_CALL_IDS = 32
"""Fields and metrics per call, which one unknown id fails."""
_MAX_PROCESSES = 256

Value = object
Write = Callable[[Document], bool]
"""Writes one line; returns whether there is room."""


class NvmlRecording(Recording):
    """A capture of all GPUs."""

    holds = (
        "versions, symbols and checksum of the driver's library; model and firmware of each GPU; "
        "the answer, error code and time of each call for utilization, power, temperature, clocks, "
        "throttling, memory, errors, links and MIG; number, kind, memory and utilization of the "
        "processes on each GPU"
    )

    def __init__(self, *, masked: bool) -> None:
        """Load the library. Raises DriverError."""
        self.identities = (
            "No names or ids of processes, and no serial numbers. UUIDs and bus addresses are "
            f"{'masked' if masked else 'real'}."
        )
        self._masked = masked
        load()
        Calls().ask(pynvml.nvmlInit)

    def write(self, write: Write, seconds: float) -> None:
        """Capture for `seconds`."""
        facts = {"exporter": __version__, "machine": os.uname().machine}
        write({"capture": 1, **facts, **_library_facts()})
        log = _Log(write)
        try:
            hung = self._capture(log, seconds)
        finally:
            log.close()  # a hung call may return after the file is closed
        for gpu in hung:
            write({"device": gpu.label, "hung_in": log.calling(gpu.label)})
        write({"timing_us": log.timing(), "end": log.seconds()})

    def _capture(self, log: _Log, seconds: float) -> list[_GpuCapture]:
        """Return GPUs with hung calls. Raises OSError."""
        system = _Reader(log, "", None, masked=self._masked)
        system.call_all(signatures.OF_SYSTEM)
        count = system.last("nvmlDeviceGetCount_v2")
        indices = range(count if isinstance(count, int) else 0)
        gpus = [_GpuCapture(log, index, seconds, masked=self._masked) for index in indices]
        threads = [threading.Thread(target=gpu.run, daemon=True) for gpu in gpus]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds + _HANG_SECONDS
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if log.failure:
            raise log.failure
        return [gpu for thread, gpu in zip(threads, gpus, strict=True) if thread.is_alive()]


class _Log:
    """The lines of a capture. Thread-safe."""

    def __init__(self, write: Write) -> None:
        self._began_ns = time.monotonic_ns()
        self._began_us = {
            "realtime": time.time_ns() // 1000,
            "boottime": time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000,
        }
        self.full = False
        self.failure: OSError | None = None
        self._write = write
        self._lock = threading.Lock()
        self._last: dict[object, tuple[int, Value]] = {}
        self._calling: dict[str, str] = {}
        self._took_us: dict[str, int] = {}
        self._timing: dict[str, dict[str, list[int]]] = defaultdict(dict)

    def seconds(self) -> float:
        """Seconds since the begin."""
        return round((time.monotonic_ns() - self._began_ns) / 1e9, 3)

    def clock_of(self, timestamp_us: int) -> tuple[str, int]:
        """Clock of a ring's timestamp, and the capture's begin on it in µs."""
        passed = (time.monotonic_ns() - self._began_ns) // 1000
        distance = {c: abs(us + passed - timestamp_us) for c, us in self._began_us.items()}
        clock = min(distance, key=lambda c: distance[c])
        return clock, self._began_us[clock]

    def calling(self, label: str) -> str | None:
        """Last function called by a device's thread."""
        return self._calling.get(label.partition(":")[0])

    def invoke(self, label: str, name: str, *arguments: object) -> int:
        """Call the C function `name`; return its code."""
        self._calling[label.partition(":")[0]] = name
        began = time.perf_counter_ns()
        try:
            code = c_function(name)(*arguments)
        except pynvml.NVMLError as error:
            code = error.value
        took = (time.perf_counter_ns() - began) // 1000
        self._took_us[label] = took
        count, total, longest = self._timing[label].get(name, (0, 0, 0))
        self._timing[label][name] = [count + 1, total + took, max(longest, took)]
        return code

    def add(
        self, label: str, name: str, arguments: Sequence[float], code: int, value: Value = None
    ) -> None:
        """Write an answer unless it is repeated."""
        key = (label, name, *arguments)
        if self.full or self._last.get(key) == (code, value):
            return
        self._last[key] = code, value
        line: dict[str, object] = {"s": self.seconds()}
        line |= {"device": label} if label else {}
        line |= {"call": name, "args": [*arguments], "code": code}
        line |= {} if value is None else {"value": value}
        line["us"] = self._took_us.get(label, 0)
        with self._lock:
            try:
                self.full = self.full or not self._write(line)
            except OSError as error:
                self.full, self.failure = True, error

    def close(self) -> None:
        with self._lock:
            self.full = True

    def last(self, label: str, name: str) -> Value:
        """Last value of a call without arguments."""
        return self._last.get((label, name), (0, None))[1]

    def timing(self) -> Document:
        """Calls, total and longest time in µs, by device and function."""
        return {label: dict(calls) for label, calls in self._timing.items()}


class _Reader:
    """Records the calls on one GPU or MIG instance."""

    def __init__(self, log: _Log, label: str, handle: object, *, masked: bool) -> None:
        """`label`: GPU index, with an instance's position, as 0:2."""
        self.log = log
        self.label = label
        self.handle = handle
        self._masked = masked
        self._marks: dict[int | str, int] = {}
        self._numbers: dict[int, int] = {}
        """Number by pid."""
        self._use = ProcessUseRequest(MAX_ROWS)
        self._links = 0

    def call_all(self, functions: Sequence[Signature], *, polled: bool = False) -> None:
        """Record `functions` with all arguments."""
        for function in functions:
            for arguments, preset in product(function.arguments, function.presets):
                if function.polled or not polled:
                    self.call(function, arguments, preset)

    def call(
        self, function: Signature, arguments: tuple[int, ...] = (), preset: tuple[int, ...] = ()
    ) -> None:
        """Record one call; `preset`: first members of its output."""
        sizes = [struct.calcsize(f"={output}") for output in function.outputs]
        # Spare bytes, for longer structures.
        buffers = [ctypes.create_string_buffer(size + 64) for size in sizes]
        struct.pack_into(f"={len(preset)}I", buffers[0], 0, *preset)
        passed = [*self._target(), *map(ctypes.c_uint, arguments), *buffers]
        if function.outputs == (TEXT,):
            passed.append(ctypes.c_uint(sizes[0]))
        code = self.log.invoke(self.label, function.name, *passed)
        value = None
        if code == pynvml.NVML_SUCCESS:
            parts = zip(function.outputs, buffers, strict=True)
            flat = [*chain.from_iterable(struct.unpack_from(f"={f}", part) for f, part in parts)]
            members = [_text(member) for member in flat[len(preset) :]]
            if self._masked:
                members = _masked(function.name, self.label, members)
            value = members if len(members) > 1 else members[0]
        self.log.add(self.label, function.name, (*arguments, *preset), code, value)

    def last(self, name: str) -> Value:
        """Last value of a call without arguments."""
        return self.log.last(self.label, name)

    def fields(self, ids: Sequence[int]) -> None:
        """Record fields of the GPU, and some of its module."""
        of_module = [(i, pynvml.NVML_POWER_SCOPE_MODULE) for i in (185, 186, 190) if i in ids]
        self._record_fields([*((i, 0) for i in ids), *of_module])

    def links(self) -> None:
        """Record state and fields of NVLinks, after all fields."""
        for link in range(min(self._links, MAX_LINKS)):
            self.call(signatures.LINK_STATE, (link,))
            # Bytes and errors.
            self._record_fields([(i, link) for i in (*range(138, 142), *range(161, 163))])

    def _record_fields(self, scoped: Sequence[tuple[int, int]]) -> None:
        """Record id, scope, code, type and value."""
        rows = [row for some in _chunks(scoped) for row in self._fields(some)]
        self.log.add(self.label, signatures.FIELDS, (), pynvml.NVML_SUCCESS, rows)
        counts = [
            row[-1] for row in rows if row[:3] == [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 0, 0]
        ]
        self._links = next((count for count in counts if isinstance(count, int)), self._links)

    def _fields(self, ids: Sequence[tuple[int, int]]) -> Iterator[list[Value]]:
        buffer = ctypes.create_string_buffer(unanswered(ids))
        count = ctypes.c_int32(len(ids))
        code = self.log.invoke(self.label, signatures.FIELDS, *self._target(), count, buffer)
        entries = memoryview(buffer)[: len(ids) * FIELD.size]
        for (i, scope), entry in zip(ids, FIELD.iter_unpack(entries), strict=True):
            *_, kind, result, raw = entry
            result = code or result
            given = result == pynvml.NVML_SUCCESS and kind in VALUES
            yield [i, scope, result, *([kind, _number(kind, raw)] if given else [])]

    def rings(self) -> None:
        """Record new samples."""
        for kind in range(10):  # NVML_SAMPLINGTYPE_COUNT of driver 615
            self._ring(kind)
        for name in PROCESS_USE:
            self._process_use(name)

    def _ring(self, kind: int) -> None:
        value_type, count = ctypes.c_uint(), ctypes.c_uint(MAX_RING_SAMPLES)
        buffer = ctypes.create_string_buffer(MAX_RING_SAMPLES * 16)
        code = self.log.invoke(
            self.label,
            signatures.SAMPLES,
            *self._target(),
            ctypes.c_uint(kind),
            ctypes.c_ulonglong(self._marks.get(kind, 0)),
            ctypes.byref(value_type),
            ctypes.byref(count),
            buffer,
        )
        value = None
        if code == pynvml.NVML_SUCCESS:
            rows = [*struct.iter_unpack("=Q8s", memoryview(buffer)[: count.value * 16])]
            clock, begin_us = self.log.clock_of(rows[-1][0] if rows else 0)
            value = {
                "type": value_type.value,
                "clock": clock,
                "samples": [[at - begin_us, _number(value_type.value, raw)] for at, raw in rows],
            }
            self._marks[kind] = max((at for at, _ in rows), default=self._marks.get(kind, 0))
        self.log.add(self.label, signatures.SAMPLES, (kind,), code, value)

    def _process_use(self, name: str) -> None:
        arguments = self._use.arguments(name, self._marks.get(name, 0))
        code = self.log.invoke(self.label, name, *self._target(), *arguments)
        value = None
        if code == pynvml.NVML_SUCCESS:
            entries = self._use.entries(name)
            newest = max((entry[0] for entry in entries), default=0)
            clock, begin_us = self.log.clock_of(newest)
            rows = [[at - begin_us, self._number(pid), *use] for at, pid, *use in entries]
            value = {"clock": clock, "samples": rows}
            self._marks[name] = max(newest, self._marks.get(name, 0))
        self.log.add(self.label, name, (), code, value)

    def _number(self, pid: int) -> int:
        return self._numbers.setdefault(pid, len(self._numbers))

    def processes(self) -> None:
        """Record memory and instance ids, without pids."""
        for name in signatures.PROCESS_LISTS:
            count = ctypes.c_uint(_MAX_PROCESSES)
            buffer = ctypes.create_string_buffer(_MAX_PROCESSES * 40)
            passed = (*self._target(), ctypes.byref(count), buffer)
            code = self.log.invoke(self.label, name, *passed)
            value = None
            if code == pynvml.NVML_SUCCESS:
                layout = self._process_layout(name)
                filled = memoryview(buffer)[: min(count.value, _MAX_PROCESSES) * layout.size]
                rows = [*layout.iter_unpack(filled)]
                value = [entry for _, *entry in rows]
                for pid, *_ in rows:
                    self._number(pid)
            self.log.add(self.label, name, (), code, value)

    def _process_layout(self, name: str) -> struct.Struct:
        """Pid, memory, GPU and compute instance."""
        if not name.endswith(("_v2", "_v3")):
            return struct.Struct("=I4xQ")
        version = tuple(map(int, re.findall(r"\d+", f"{self._driver_version()}")[:2]))
        # Drivers 530 to 535.98 write eight more bytes.
        longer = name.endswith("_v3") and (530, 0) <= version < (535, 99)
        return struct.Struct("=I4xQII8x" if longer else "=I4xQII")

    def _driver_version(self) -> Value:
        return self.log.last("", "nvmlSystemGetDriverVersion")

    def events(self) -> None:
        """Record support for error events."""
        handle = ctypes.c_void_p()
        created, registered = "nvmlEventSetCreate", "nvmlDeviceRegisterEvents"
        code = self.log.invoke(self.label, created, ctypes.byref(handle))
        self.log.add(self.label, created, (), code)
        if code == pynvml.NVML_SUCCESS:
            kinds = ctypes.c_ulonglong(pynvml.nvmlEventTypeXidCriticalError)
            code = self.log.invoke(self.label, registered, *self._target(), kinds, handle)
            self.log.add(self.label, registered, (), code)
            self.log.invoke(self.label, "nvmlEventSetFree", handle)

    def _target(self) -> tuple[object, ...]:
        return () if self.handle is None else (self.handle,)


class _GpmCapture:
    """The GPM metrics of one GPU or MIG instance."""

    def __init__(self, reader: _Reader, whole: _Reader) -> None:
        """`whole`: the (instance's) GPU."""
        self._reader = reader
        self._whole = whole
        self._samples = [ctypes.c_void_p() for _ in range(3)]
        """First, last and new sample."""
        self._times = [0.0, 0.0, 0.0]
        self._intervals = [0.2, 1.0, 5.0]
        """Remaining intervals of all metrics, in seconds."""
        self._works = all(self._allocated(s) for s in self._samples) and self._take(0)
        self._works = self._works and self._take(1)

    def _allocated(self, sample: ctypes.c_void_p) -> bool:
        name = "nvmlGpmSampleAlloc"
        code = self._reader.log.invoke(self._reader.label, name, ctypes.byref(sample))
        return bool(code == pynvml.NVML_SUCCESS)

    def poll(self) -> None:
        """Record means since the first and the last sample."""
        if not self._works or not self._take(2):
            return
        first, last, new = self._times
        if self._intervals and new - first >= self._intervals[0]:
            interval = self._intervals.pop(0)
            # Driver 615 has 476 metrics.
            self._compare(0, interval, _chunks(range(1, 513)))
        if new - last >= 1.0:
            self._compare(1, 1.0, [gpm.IDS, tuple(gpm.C2C_RATES)])
            self._samples[1:] = reversed(self._samples[1:])
            self._times[1] = new

    def free(self) -> None:
        for sample in self._samples:
            if sample.value:
                self._reader.log.invoke(self._reader.label, "nvmlGpmSampleFree", sample)

    def _take(self, position: int) -> bool:
        instance = self._reader.last("nvmlDeviceGetGpuInstanceId")
        whole, log = self._whole, self._reader.log
        sample = self._samples[position]
        self._times[position] = time.monotonic()
        if self._reader is whole:
            name = "nvmlGpmSampleGet"
            code = log.invoke(whole.label, name, whole.handle, sample)
            log.add(whole.label, name, (), code)
        elif isinstance(instance, int):
            name = "nvmlGpmMigSampleGet"
            number = ctypes.c_uint(instance)
            code = log.invoke(whole.label, name, whole.handle, number, sample)
            log.add(whole.label, name, (instance,), code)
        else:
            return False
        return bool(code == pynvml.NVML_SUCCESS)

    def _compare(self, earlier: int, interval: float, ids: Iterable[Sequence[int]]) -> None:
        """Record id, code and mean of each metric since `earlier`."""
        rows: list[list[Value]] = []
        for some in ids:
            question = gpm.request(self._samples[earlier], self._samples[2], tuple(some))
            code = self._reader.log.invoke(self._reader.label, signatures.GPM_METRICS, question)
            for metric, result, value in gpm.answers(question):
                given = [value] if (code or result) == pynvml.NVML_SUCCESS else []
                rows.append([metric, code or result, *given])
        self._reader.log.add(self._reader.label, signatures.GPM_METRICS, (interval,), 0, rows)


class _GpuCapture:
    """The capture of one GPU and its MIG instances by one thread."""

    def __init__(self, log: _Log, index: int, seconds: float, *, masked: bool) -> None:
        self._log = log
        self._index = index
        self._seconds = seconds
        self._masked = masked
        self.label = f"{index}"

    def run(self) -> None:
        """Capture until the end or a full file."""
        whole = self._reader(self.label, "nvmlDeviceGetHandleByIndex_v2", self.label, self._index)
        if whole is None:
            return
        readers = [whole, *self._instances(whole)]
        for reader in readers:
            reader.call_all(signatures.OF_DEVICES)
            reader.processes()
            reader.rings()
        self._all_fields(readers)
        whole.links()
        whole.events()
        gpm_captures = [_GpmCapture(reader, whole) for reader in readers]
        self._poll(readers, gpm_captures)
        for reader in readers:
            reader.call_all(signatures.OF_DEVICES)
            reader.processes()
        whole.links()
        for capture in gpm_captures:
            capture.free()

    def _poll(self, readers: Sequence[_Reader], gpm_captures: Sequence[_GpmCapture]) -> None:
        polls, repeated = 0, False
        # Throttle times, memory temperature, power, temperature limits.
        polled_fields = (
            *(pynvml.NVML_FI_DEV_MEMORY_TEMP, pynvml.NVML_FI_DEV_C2C_LINK_COUNT),
            *(*range(74, 82), *range(185, 197), *range(251, 254), *range(269, 272)),
        )
        while (now := self._log.seconds()) < self._seconds and not self._log.full:
            for reader, capture in zip(readers, gpm_captures, strict=True):
                reader.rings()
                capture.poll()
                if polls % 2 == 0:
                    reader.call_all(signatures.OF_DEVICES, polled=True)
                    reader.fields(polled_fields)
            if now >= _REPEAT_SECONDS and not repeated:
                repeated = True
                self._all_fields(readers)
            polls += 1
            time.sleep(max(min(_POLL_SECONDS, self._seconds - self._log.seconds()), 0.0))
        if not repeated:
            self._all_fields(readers)

    @staticmethod
    def _all_fields(readers: Sequence[_Reader]) -> None:
        for reader in readers:
            reader.fields(range(1, signatures.LAST_FIELD + 1))

    def _instances(self, whole: _Reader) -> Iterator[_Reader]:
        whole.call(Signature("nvmlDeviceGetMigMode", ("I", "I")))
        whole.call(Signature("nvmlDeviceGetMaxMigDeviceCount"))
        mode, count = map(whole.last, ("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount"))
        if not isinstance(mode, list) or not mode[0] or not isinstance(count, int):
            return
        for position in range(count):
            label = f"{self.label}:{position}"
            name = "nvmlDeviceGetMigDeviceHandleByIndex"
            reader = self._reader(label, name, whole.label, position, whole.handle)
            if reader:
                yield reader

    def _reader(
        self, label: str, name: str, asked: str, position: int, *whole: object
    ) -> _Reader | None:
        """Device `position` of function `name`."""
        handle = ctypes.c_void_p()
        number = ctypes.c_uint(position)
        code = self._log.invoke(asked, name, *whole, number, ctypes.byref(handle))
        self._log.add(asked, name, (position,), code)
        if code != pynvml.NVML_SUCCESS:
            return None
        return _Reader(self._log, label, handle, masked=self._masked)


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + _MAX_CALL_IDS] for at in range(0, len(items), _MAX_CALL_IDS))


def _text(member: Value) -> Value:
    """Text without padding; numbers unchanged."""
    if isinstance(member, bytes):
        return member.partition(b"\0")[0].decode(errors="replace")
    return member


def _number(kind: int, raw: bytes) -> float:
    number: float = struct.unpack(f"={VALUES.get(kind, 'Q')}", raw)[0]
    return number


def _masked(name: str, label: str, members: list[Value]) -> list[Value]:
    """`members` with identifiers replaced, distinct per device."""
    gpu, _, position = label.partition(":")
    if name == "nvmlDeviceGetUUID":
        kind = "MIG" if position else "GPU"
        return [f"{kind}-00000000-0000-0000-{int(gpu):04}-{int(position or 0):012}"]
    if name == "nvmlDeviceGetPciInfo_v3":
        _, _, _, _, device, subsystem, _ = members
        bus = int(gpu)
        return [f"0000:{bus:02X}:00.0", 0, bus, 0, device, subsystem, f"00000000:{bus:02X}:00.0"]
    if name == "nvmlDeviceGetGpuFabricInfoV":
        return [0, 0, 0, 0, *members[4:]]
    return members


def _library_facts() -> dict[str, object]:
    """Checksum and NVML symbols of the loaded library."""
    content = b""
    with suppress(OSError, pynvml.NVMLError):
        content = _library_file().read_bytes()
    names = sorted(set(re.findall(rb"(?<=\0)nvml[A-Z]\w+(?=\0)", content)))
    symbols = [name.decode() for name in names if hasattr(pynvml.nvmlLib, name.decode())]
    return {"sha256": hashlib.sha256(content).hexdigest() if content else None, "symbols": symbols}


def _library_file() -> Path:
    """The mapped file. Raises OSError, NVMLError."""
    at = address(c_function("nvmlInit_v2"))
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        area, *_, path = line.split(maxsplit=5)
        begin, end = (int(number, 16) for number in area.split("-"))
        if begin <= at < end:
            return Path(path)
    raise FileNotFoundError("the library is not mapped from a file")
