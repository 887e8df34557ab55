"""The first thing to try for each thing an idle GPU waits on."""

from __future__ import annotations

from gpu_bottleneck_exporter import stall

REMEDIES: dict[str, tuple[str, str]] = {
    stall.UNALLOCATED: (
        "no process holds the GPU",
        "give it to a job, or let the scheduler know that it is free",
    ),
    stall.HOST_CODE: (
        "the main loop runs Python while the GPU waits",
        "profile the loop (py-spy); load in workers, avoid .item() every step, compile",
    ),
    stall.WORKER_CPU: (
        "loader workers burn CPU: decoding, augmentation, tokenising",
        "more workers if cores are free; else preprocess offline or on the GPU (DALI)",
    ),
    stall.CPU_QUEUE: (
        "loader processes wait for a CPU",
        "fewer workers or hogs on these cores, or more cores for the job",
    ),
    stall.CPU_QUOTA: (
        "the CPU limit of the container holds the loader back",
        "raise or remove the CPU limit (keep the request)",
    ),
    stall.STORAGE: (
        "the feeders wait for storage",
        (
            "larger sequential reads, local NVMe or a cache near the GPU; write checkpoints "
            "asynchronously"
        ),
    ),
    stall.MEMORY: (
        "data is evicted from the page cache and read again",
        "raise the memory limit, or make the working set smaller (shards, smaller cache)",
    ),
    stall.NETWORK: (
        "the feeders sleep in sockets: remote data",
        "more parallel requests and prefetching, a cache near the GPU",
    ),
    stall.PEER: (
        "another GPU of the same job works meanwhile",
        "look at that GPU: straggler or uneven work",
    ),
    stall.ASLEEP: (
        "everything sleeps: a notebook left open, a pause between phases, a deadlock",
        "ask the owner; py-spy dump shows where it sleeps",
    ),
    stall.UNKNOWN: (
        "the signals could not be read",
        "run `check`: it says which permission is missing",
    ),
}
"""What it means, and what to try first, by `waiting_on`."""
