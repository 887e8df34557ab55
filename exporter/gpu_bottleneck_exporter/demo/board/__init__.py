"""The virtual board: shared memory in which any process can run work on virtual GPUs.

A board file consists of a fixed header and one `GpuRecord` per virtual GPU or MIG instance.
Training loops *write* it (`VirtualGpu.launch`); drivers *read* it: `demo.virtual` in Python and,
in the tests, a C `libnvidia-ml.so.1` that serves the same memory through NVML's calls. Its C
header is generated from the structures in `layout` (`tests/fake_nvml/c_header.py`), so the layout
has one definition.

Time is CLOCK_MONOTONIC in nanoseconds, cut into slots of `SLOT_NS`. A launch books its work into
all slots that it covers, future ones included. So it returns at once, as a CUDA launch does, and
`synchronize` sleeps until the work is done. A GPU runs one piece of work at a time; launches of
several processes queue up.
"""
