"""The virtual board: shared memory in which any process can run work on virtual GPUs.

A board file holds a fixed header and one `Gpu` record per virtual GPU or MIG
instance. Training loops *write* it (`VirtualGpu.launch`); drivers *read* it:
`driver.virtual` in Python and, in the tests, a C `libnvidia-ml.so.1` that serves
the same memory through NVML's own calls. The C header is generated from the
structures below (`c_header`), so there is
one definition of the layout.

Time is CLOCK_MONOTONIC in nanoseconds, cut into slots of `SLOT_NS`. Work is
booked into the slots it covers at launch, also into future ones: a launch returns
at once, as a CUDA launch does, and `synchronize` sleeps until the work is over. A
GPU runs one piece of work at a time; launches of several processes queue up.
"""

from gpu_bottleneck_exporter.driver.board.board import (
    Board,
    BoardError,
    VirtualGpu,
)
from gpu_bottleneck_exporter.driver.board.c_header import (
    c_header,
)
from gpu_bottleneck_exporter.driver.board.create import (
    A100,
    H100,
    Model,
    create,
)
from gpu_bottleneck_exporter.driver.board.layout import (
    CALL,
    CALLS,
    CLOCKS,
    KIND_GPU,
    KIND_MIG,
    LANE,
    LANES,
    LAYOUT_VERSION,
    MAGIC,
    MAX_EVENTS,
    MAX_GPUS,
    MAX_PROCESSES,
    MAX_QUEUED_NS,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_SUCCESS,
    PROCESS_COMPUTE,
    PROCESS_GRAPHICS,
    SLOT_NS,
    SLOTS,
    THROTTLE_REASONS,
    Gpu,
    Header,
    Process,
    throttled_ns,
)
from gpu_bottleneck_exporter.driver.board.work import (
    Work,
)

__all__ = [
    "A100",
    "CALL",
    "CALLS",
    "CLOCKS",
    "H100",
    "KIND_GPU",
    "KIND_MIG",
    "LANE",
    "LANES",
    "LAYOUT_VERSION",
    "MAGIC",
    "MAX_EVENTS",
    "MAX_GPUS",
    "MAX_PROCESSES",
    "MAX_QUEUED_NS",
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_SUCCESS",
    "PROCESS_COMPUTE",
    "PROCESS_GRAPHICS",
    "SLOTS",
    "SLOT_NS",
    "THROTTLE_REASONS",
    "Board",
    "BoardError",
    "Gpu",
    "Header",
    "Model",
    "Process",
    "VirtualGpu",
    "Work",
    "c_header",
    "create",
    "throttled_ns",
]
