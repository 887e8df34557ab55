"""The virtual board as a driver in pure Python, for `demo`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from gpu_bottleneck_exporter.demo.board.board import Board, VirtualGpu
from gpu_bottleneck_exporter.demo.board.layout import MAX_EVENTS
from gpu_bottleneck_exporter.demo.virtual import view
from gpu_bottleneck_exporter.demo.virtual.device import Meter, VirtualDevice, is_mig
from gpu_bottleneck_exporter.driver.nvml import kubernetes
from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA
from gpu_bottleneck_exporter.driver.protocol import Device
from gpu_bottleneck_exporter.driver.readings import ErrorEvent, Identity, System

_POLL_SECONDS = 0.05


class VirtualDriver:
    """A board as a driver; the board must stay open while the driver is used."""

    name = "virtual"
    about = replace(NVIDIA, title="virtual board", simulated=True, sees_all_namespaces=True)

    def __init__(self, board: Board) -> None:
        self._board = board
        self._next_event = board.header.event_count
        self._meters: dict[int, Meter] = {}

    @property
    def system(self) -> System:
        """Versions from the board's header."""
        cuda = self._board.header.cuda_version
        version = self._board.header.driver_version.decode()
        return System(version, f"{cuda // 1000}.{cuda % 1000 // 10}")

    @property
    def calls(self) -> int:
        """Readings of the board so far."""
        return sum(meter.calls for meter in list(self._meters.values()))

    @property
    def seconds(self) -> float:
        """Seconds spent reading the board so far."""
        return sum(meter.nanoseconds for meter in list(self._meters.values())) / 1e9

    def count(self) -> int:
        """Number of whole GPUs."""
        return sum(not is_mig(gpu) for gpu in self._board.gpus)

    def open(self, index: int) -> list[Device]:
        """GPU `index` and, after it, its MIG instances."""
        meter = self._meters.setdefault(index, Meter())
        whole = VirtualDevice(self._board, self._board.gpus[index], meter)
        whole.inject_faults("DeviceGetHandleByIndex")
        return [whole, *(VirtualDevice(self._board, gpu, meter) for gpu in self._children(index))]

    def instances(self, index: int) -> tuple[str, ...]:
        """UUIDs of the MIG instances of GPU `index`."""
        return tuple(gpu.record.uuid.decode() for gpu in self._children(index))

    def _children(self, index: int) -> list[VirtualGpu]:
        if not self._board.gpus[index].record.mig_enabled:
            return []
        return view.instances(self._board, index)

    def gpus_of_device(self, source: str, device: str, gpus: Sequence[Identity]) -> list[Identity]:
        """Those of `gpus` that the kubelet may mean by `device`, in NVIDIA's naming."""
        return kubernetes.gpus_of_device(source, device, gpus)

    def watch_errors(self, index: int) -> None:
        """Nothing to do: the board reports them all."""

    def wait_error(self, timeout_seconds: float) -> ErrorEvent | None:
        """The next event on the board; None after `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        while self._next_event >= self._board.header.event_count:
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_SECONDS)
        event = self._board.header.events[self._next_event % MAX_EVENTS]
        self._next_event += 1
        return ErrorEvent(int(event.gpu), int(event.xid))
