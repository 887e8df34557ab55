"""The virtual board: shared memory in which any process can run work on virtual GPUs.

A board file consists of a header and one `GpuRecord` per virtual GPU or MIG instance. Training
loops write it (`VirtualGpu.launch`). Drivers read it: `demo.virtual` in Python and, in the tests, a
C `libnvidia-ml.so.1` (`tests/fake_nvml/c_header.py`).

Time is CLOCK_MONOTONIC, in slots of `SLOT_NS`. A launch adds its work to all slots that it covers,
future ones included, and returns at once; `synchronize` sleeps until the work is done. A GPU queues
its pieces of work.
"""
