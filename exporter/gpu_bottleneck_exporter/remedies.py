"""The first thing to try: for each thing an idle GPU waits on, and for what is missing."""

from __future__ import annotations

from gpu_bottleneck_exporter import stall
from gpu_bottleneck_exporter.pod import in_a_pod

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
        "it waits for an answer that it asked for, or that is arriving",
        "more parallel requests and prefetching, a cache near the GPU",
    ),
    stall.REQUESTS: (
        "a server without a request in flight: no demand",
        "scale it down when nobody asks, or share the GPU (MIG, several models)",
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

RUNBOOK_BASE = (
    "https://github.com/gpu-bottleneck-exporter/gpu-bottleneck-exporter/blob/main/rules/runbooks"
)
RUNBOOKS: dict[str, str] = {
    stall.HOST_CODE: "GpuHostLoopBound",
    stall.WORKER_CPU: "GpuCpuPreprocessingBound",
    stall.CPU_QUEUE: "GpuCpuOversubscribed",
    stall.CPU_QUOTA: "GpuCpuThrottled",
    stall.STORAGE: "GpuLocalStorageBound",
    stall.MEMORY: "GpuPageCacheThrash",
    stall.NETWORK: "GpuNetworkStorageBound",
    stall.REQUESTS: "GpuWaitsForRequests",
    stall.PEER: "GpuImbalance",
    stall.ASLEEP: "GpuAllocatedIdle",
    stall.UNKNOWN: "GpuUnexplainedLowUtilization",
}
"""By `waiting_on`; a GPU that nobody holds needs none."""
RUNBOOK_OF_DOWN = "GpuTelemetryLost"

OF_DOWN = "look for XIDs in the kernel log; reset the GPU or restart the node"
OF_NO_DRIVER = (
    "install NVIDIA's driver; in a container use the NVIDIA runtime with the capability 'utility'. "
    "To try the exporter without a GPU: gpu-bottleneck-exporter demo"
)
OF_OTHER_ERRORS = (
    "see what nvidia-smi says, and look for NVRM and XIDs in the kernel log (dmesg); if they are "
    "well, report it with the driver's version"
)
OF_DRIVER: dict[str | None, str] = {
    "no_library": OF_NO_DRIVER,
    "library_broken": "the file is damaged, or not the driver's: install the driver's libraries "
    "anew, and let LD_LIBRARY_PATH lead to no other file of this name; start a container anew, so "
    "that the NVIDIA runtime mounts the host's library, and leave the file out of its image",
    "library_forbidden": "let the exporter's user read the library and the folders above it "
    "(chmod a+rX), or run it as root; in a container look at the mount, SELinux and AppArmor, too",
    "binding": "pip install 'nvidia-ml-py>=12.570.86', and remove packages that bring a pynvml of "
    "their own (pynvml before 12, py3nvml)",
    "not_loaded": "load the driver's kernel module (modprobe nvidia; dmesg says why it does not "
    "load); in a container the host's driver is needed and access to its devices. To try the "
    "exporter without a GPU: gpu-bottleneck-exporter demo",
    "no_permission": "give the exporter's user access to /dev/nvidiactl, /dev/nvidia0 and so on: "
    "by their mode and group, by DeviceAllow= in a unit, in a container by the NVIDIA runtime or "
    "--device",
    "mismatch": "library and kernel module are of different versions, as after an upgrade: load "
    "the new module (rmmod, modprobe nvidia) or restart the node; restart containers that have the "
    "old library",
    "access_lost": "in a container restart it: access to the devices was taken away (a systemd "
    "daemon-reload does that); else see what nvidia-smi says, and the kernel log",
    "no_gpu": "the driver works and lists no GPU: in a container ask for GPUs "
    "(NVIDIA_VISIBLE_DEVICES, nvidia.com/gpu); on the host see lspci -d 10de: and the kernel log",
    "asleep": "start it with --driver.wake-suspended, which keeps them awake, or use a GPU",
    "reset_required": "drain it and reset it (nvidia-smi --gpu-reset), or restart the node",
    "hung": "look for XIDs in the kernel log (119 and 120 above all); if it stays, restart the "
    "node: nothing else frees a call that hangs in the driver",
}
"""By what a driver error comes from; others: OF_DOWN for one GPU, OF_OTHER_ERRORS for all."""
_BY_THE_CHART = (
    "let the pod have the GPUs by the chart's values gpu.access and gpu.runtimeClassName, which "
    "its README names for each platform; "
)
_IN_A_POD: dict[str | None, str] = {
    "no_library": f"{_BY_THE_CHART}NVIDIA's driver must be installed on the node",
    "not_loaded": f"{_BY_THE_CHART}NVIDIA's driver must be loaded on the node (modprobe nvidia; "
    "dmesg says why it does not load)",
    "no_permission": f"{_BY_THE_CHART}a mount of /dev/nvidia0 alone does not allow to open it",
    "no_gpu": f"{_BY_THE_CHART}gpu.visibleDevices says which of them",
}
"""What the chart can do about it."""


def of_driver(cause: str | None, otherwise: str = OF_OTHER_ERRORS) -> str:
    """What to do about a driver error that comes from `cause`, here; else what is `otherwise`."""
    found = _IN_A_POD.get(cause) if in_a_pod() else None
    return found or OF_DRIVER.get(cause, otherwise)


OF_SIGNALS: dict[str, str] = {
    "utilization_samples": "MIG, vGPU and integrated GPUs have no sample ring: busy time comes "
    "from GPM or from one reading a tick, which is coarser",
    "gpm": "GPM needs Hopper or later and driver 525 or later: without it there are no SM, "
    "tensor, DRAM, PCIe or NVLink counters",
    "energy": "the energy counter needs Volta or later and no vGPU: use gpu_power_watts",
    "throttle_counters": "the driver gives no throttle time: only gpu_throttle_active is left",
    "processes": "the driver does not list processes: run in the host's PID namespace and, under "
    "MIG, with access to /dev/nvidia-caps (mig monitor)",
    "xid_events": "the driver reports no events: watch the kernel log for XIDs",
    "kubelet": "GPUs that were given to a pod which has not opened them look free: "
    "gpu-bottleneck-exporter check says why",
    "psi_host": "the kernel accounts no pressure: boot it with psi=1 (CONFIG_PSI)",
    "psi_cgroup": "jobs have pressure under cgroup v2 only: boot with "
    "systemd.unified_cgroup_hierarchy=1, and psi=1 if psi_host is missing too; in a container "
    "mount the host's /sys read-only and name it with --path.sysfs",
    "schedstat": "the kernel has no /proc/PID/schedstat (CONFIG_SCHED_INFO): there is no time in "
    "the CPU's queue, and contention shows as host_code or worker_cpu",
    "wait_channel": "the kernel does not tell what processes sleep in, so network, queue, "
    "requests and asleep become unknown: give the exporter CAP_SYS_PTRACE and "
    "CAP_DAC_READ_SEARCH, or run it as root",
    "connections": "what connections were asked is not told, so of waiting for remote data only "
    "blocking reads show, as network, and servers are asleep: give the exporter CAP_SYS_PTRACE and "
    "CAP_DAC_READ_SEARCH in the host's PID namespace, on Linux 5.6 or later with a seccomp profile "
    "that allows pidfd_getfd",
    "all_threads": "a process has more threads than are looked at (128): those that move come "
    "first, what the others wait for may be missed",
    "own_cpu": "the exporter itself gets no CPU for a quarter of the time or more, so it reads "
    "late, and what it did not see is absent or unobserved: give it more (resources.requests.cpu "
    "in the chart, CPUWeight= in a unit), take its CPU limit away, or leave the machine a core",
    "all_sockets": "a process has more sockets than are looked at (64 at a time, in turn): a "
    "question that is soon answered may be missed",
    "all_processes": "a GPU has more workers than are read every two seconds (512 a second over "
    "all GPUs): their counters come later, and beyond 8192 not at all; see "
    "gpu_exporter_feeder_processes",
    "process_io": "what processes read and wrote, their /dev/shm and their environment are not "
    "told, so memory shows as storage, copying as host_code or worker_cpu, peer within one process "
    "only: give the exporter CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or run it as root",
    "host_pids": "not all processes are seen, so GPUs lack feeders and idle time is unallocated or "
    "unknown: set hostPID: true in the pod (docker: --pid=host); where /proc is mounted with "
    "hidepid, add the exporter to the group of its gid= or run it as root",
    "cgroup_cpu": "no cgroup CPU controller is mounted, so CPU limits and throttling are not "
    "seen: mount the host's /sys/fs/cgroup read-only, see --path.sysfs",
    "cgroup_memory": "no cgroup memory controller is mounted, so limits, use and refaults are not "
    "seen: mount the host's /sys/fs/cgroup read-only, see --path.sysfs",
}
"""What a signal that is missing costs, and how to get it."""
