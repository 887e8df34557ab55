"""Meanings, remedies and runbooks by `waiting_on`, and by missing host signal."""

from __future__ import annotations

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.prescription.model import CPU_CORES, CPU_LIMIT, NUM_WORKERS

WAITS_FOR: dict[str, str] = {
    stall.UNALLOCATED: "a job",
    stall.HOST_CODE: "Python code",
    stall.WORKER_CPU: "loader workers",
    stall.CPU_QUEUE: "CPU cores",
    stall.CPU_QUOTA: "CPU quota",
    stall.STORAGE: "storage",
    stall.MEMORY: "memory",
    stall.NETWORK: "the network",
    stall.REQUESTS: "requests",
    stall.PEER: "other GPUs",
    stall.VIDEO_ENGINE: "a video engine",
    stall.ASLEEP: "a sleeping job",
    stall.UNKNOWN: "an unknown cause",
}
"""Awaited resource by `waiting_on`, to follow "Waiting for"."""
MEANINGS: dict[str, str] = {
    stall.UNALLOCATED: "no process holds the GPU",
    stall.HOST_CODE: "the main process computes while the GPU has no work",
    stall.WORKER_CPU: "they take too long to decode, augment or tokenise",
    stall.CPU_QUEUE: "processes of the job are ready to run but get no CPU",
    stall.CPU_QUOTA: "the container's CPU limit throttles the job",
    stall.STORAGE: "the job reads or writes files",
    stall.MEMORY: "data is evicted from the page cache and read again, or the job hits its "
    "memory limit",
    stall.NETWORK: "data that the job asked for has not arrived yet",
    stall.REQUESTS: "the server has no request in flight",
    stall.PEER: "another GPU of the same job is still at work",
    stall.VIDEO_ENGINE: "the encoder, decoder, JPEG or OFA engine works, and no kernel runs",
    stall.ASLEEP: "nothing runs: a notebook left open, a pause between phases, or a deadlock",
    stall.UNKNOWN: "the signals could not be read, or the GPU's driver holds the job up",
}
"""Explanation by `waiting_on`."""
LIMITS = WAITS_FOR | {stall.ASLEEP: "its own sleep", stall.PEER: "the wait for other GPUs"}
"""Next bottleneck of a job by `waiting_on`."""
SETTINGS = {
    NUM_WORKERS: "Loader workers",
    CPU_LIMIT: "The CPU limit",
    CPU_CORES: "CPU cores",
}
"""Setting that changed, by knob; begins a sentence."""
REMEDIES: dict[str, str] = {
    stall.UNALLOCATED: "allocate it to a job, or report it to the scheduler as free",
    stall.HOST_CODE: "find the line with `diagnose --stacks`; load data in workers, call .item() "
    "less often, or use torch.compile",
    stall.WORKER_CPU: "add loader workers if cores are free; otherwise preprocess offline or on "
    "the GPU (DALI)",
    stall.CPU_QUEUE: "give the job more cores, use fewer workers, or move other load off its cores",
    stall.CPU_QUOTA: "raise or remove the CPU limit, and keep the request",
    stall.STORAGE: "read larger blocks in sequence, use local NVMe or a cache near the GPU, and "
    "write checkpoints asynchronously",
    stall.MEMORY: "raise the memory limit, or shrink the working set (shards, smaller cache)",
    stall.NETWORK: "make more requests in parallel, prefetch, or put a cache near the GPU",
    stall.REQUESTS: "scale the server down while there is no traffic, or share the GPU (MIG, "
    "several models)",
    stall.PEER: "look at the GPU that it waits for: it is a straggler or has more work",
    stall.VIDEO_ENGINE: "leave a GPU that transcodes as it is; otherwise decode on CPUs as well, "
    "or decode fewer or smaller frames",
    stall.ASLEEP: "ask the owner; `diagnose --stacks` names the line in which it sleeps",
    stall.UNKNOWN: "run `check`, which names the missing permission",
}
"""First remedy to try, by `waiting_on`, after "Do first:"."""
REMEDIES_OF_MAIN = {
    stall.NETWORK: "make the requests of the main process in the background (a thread, loader "
    "workers) or less often, or prefetch the data",
}
"""Overrides if the main itself waits, and no worker."""
REMEDIES_BY_REFUSAL = {
    "churn": "keep the workers between epochs with persistent_workers=True, or make epochs longer",
    "pinned": "let the workers run on all CPUs of the job: remove what sets their affinity "
    "(OMP_PROC_BIND, GOMP_CPU_AFFINITY, KMP_AFFINITY, sched_setaffinity, taskset), or undo it in "
    "worker_init_fn",
}
"""Overrides by reason of a refused prescription, for any cause."""
RUNBOOKS: dict[str, str] = {
    stall.HOST_CODE: "GpuStarved-host_loop_bound",
    stall.WORKER_CPU: "GpuStarved-cpu_preprocessing_bound",
    stall.CPU_QUEUE: "GpuStarved-cpu_oversubscribed",
    stall.CPU_QUOTA: "GpuStarved-cpu_throttled",
    stall.STORAGE: "GpuStarved-local_storage_bound",
    stall.MEMORY: "GpuStarved-page_cache_thrash",
    stall.NETWORK: "GpuStarved-network_storage_bound",
    stall.REQUESTS: "GpuIdle-waits_for_requests",
    stall.PEER: "GpuImbalance-gpu_imbalance",
    stall.VIDEO_ENGINE: "GpuInefficient-video_engine_bound",
    stall.ASLEEP: "GpuIdle-allocated_idle",
    stall.UNKNOWN: "GpuUnexplainedLowUtilization",
}
"""Runbook by `waiting_on`; an unallocated GPU needs none."""
RUNBOOK_OF_DOWN = "GpuTelemetryLost"
MIN_WORKING_RATIO = 0.05
"""Judged: busy share from which a sleeping job sleeps between steps."""
AT_WORK = {
    stall.ASLEEP: (
        "the loop sleeps between its steps",
        "find the line with `diagnose --stacks`, and do its work in the background or less often",
        "GpuUnexplainedLowUtilization",
    )
}
"""Meaning, remedy and runbook from `MIN_WORKING_RATIO` on, if different."""

SIGNAL_REMEDIES: dict[str, str] = {
    "kubelet": "GPUs assigned to a pod that has not opened them look free: "
    "gpu-bottleneck-exporter check shows why",
    "psi_host": "the kernel records no pressure: boot with psi=1 (CONFIG_PSI)",
    "psi_cgroup": "jobs have pressure only under cgroup v2: boot with "
    "systemd.unified_cgroup_hierarchy=1, and psi=1 if psi_host is missing too; in a container, "
    "mount the host's /sys read-only and name it with --path.sysfs",
    "schedstat": "the kernel has no /proc/PID/schedstat (CONFIG_SCHED_INFO): run queue delay is "
    "unknown, and contention shows as host_code or worker_cpu",
    "wait_channel": "the kernel hides the wait channels of processes, so network, queue, requests "
    "and asleep become unknown: give the exporter CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or run "
    "it as root",
    "connections": "requests pending on connections cannot be seen, so only blocking reads of "
    "remote data count as network, and servers count as asleep: give the exporter CAP_SYS_PTRACE "
    "and CAP_DAC_READ_SEARCH in the host's PID namespace, on Linux 5.6 or later with a seccomp "
    "profile that allows pidfd_getfd",
    "all_threads": "a process has more threads than the exporter watches (128): it watches active "
    "ones first and may miss the waits of the others",
    "own_cpu": "the exporter itself gets no CPU for a quarter of the time or more, so it reads "
    "late and misses values: give it more CPU (resources.requests.cpu in the chart, CPUWeight= in "
    "a unit), remove its CPU limit, or leave the machine a core",
    "all_sockets": "a process has more sockets than the exporter checks (64 at a time, in turn): "
    "it may miss requests that are answered quickly",
    "all_processes": "a GPU has more workers than the exporter reads every two seconds (512 a "
    "second over all GPUs): their counters are late, and beyond 8192 workers absent; see "
    "gpu_exporter_feeder_processes",
    "process_io": "the I/O counters, /dev/shm and environment of processes cannot be read, so "
    "memory shows as storage, copying as host_code or worker_cpu, and peer only within one "
    "process: give the exporter CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or run it as root",
    "host_pids": "some processes cannot be seen, so GPUs seem free or wait for an unknown cause: "
    "set hostPID: true in the pod (docker: --pid=host); where /proc is mounted with hidepid, add "
    "the exporter to the group of its gid= or run it as root",
    "cgroup_cpu": "no cgroup CPU controller is mounted, so CPU limits and throttling cannot be "
    "seen, and without any controller pods, containers and Slurm jobs are unknown: mount the "
    "host's /sys/fs/cgroup read-only, see --path.sysfs",
    "cgroup_memory": "no cgroup memory controller is mounted, so limits, use and refaults cannot "
    "be seen: mount the host's /sys/fs/cgroup read-only, see --path.sysfs",
}
"""Consequence and remedy by missing signal; drivers have those of GPUs."""
