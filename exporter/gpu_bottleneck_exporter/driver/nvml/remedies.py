"""Remedies for errors and gaps of NVIDIA's driver."""

from __future__ import annotations

from collections.abc import Collection

from gpu_bottleneck_exporter.driver.about import About
from gpu_bottleneck_exporter.driver.nvml.findings import seen
from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.pod import in_a_pod

OF_ERRORS: dict[str, str] = {
    "no_library": "install NVIDIA's driver; in a container, use the NVIDIA runtime with the "
    "capability 'utility'. To try the exporter without a GPU: gpu-bottleneck-exporter demo",
    "library_broken": "the file is damaged, or not the driver's: reinstall the driver's libraries, "
    "and keep other files of this name out of LD_LIBRARY_PATH; recreate a container, so that the "
    "NVIDIA runtime mounts the host's library, and keep the file out of its image",
    "library_forbidden": "let the exporter's user read the library and the folders above it "
    "(chmod a+rX), or run it as root; in a container, also check the mount, SELinux and AppArmor",
    "binding": "pip install 'nvidia-ml-py>=12.570.86', and remove packages that ship their own "
    "pynvml (pynvml before 12, py3nvml)",
    "not_loaded": "load the driver's kernel module (modprobe nvidia; dmesg shows why it fails); a "
    "container needs the host's driver and access to its devices. To try the exporter without a "
    "GPU: gpu-bottleneck-exporter demo",
    "no_permission": "give the exporter's user access to /dev/nvidiactl, /dev/nvidia0 and so on: "
    "by their mode and group, in a unit by DeviceAllow=, in a container by the NVIDIA runtime or "
    "--device",
    "mismatch": "library and kernel module have different versions, as after an upgrade: load the "
    "new module (rmmod, modprobe nvidia) or reboot the node; restart containers that have the old "
    "library",
    "access_lost": "if it runs in a container, restart it: it lost access to the devices (a "
    "systemd daemon-reload does that); otherwise run nvidia-smi and check the kernel log",
    "no_gpu": "the driver works but lists no GPU: in a container, request GPUs "
    "(NVIDIA_VISIBLE_DEVICES, nvidia.com/gpu); on the host, check lspci -d 10de: and the kernel "
    "log",
    "asleep": "start it with --driver.wake-suspended, which keeps the GPUs awake, or use a GPU",
    "reset_required": "drain the GPU and reset it (nvidia-smi --gpu-reset), or reboot the node",
    "hung": "look for XIDs in the kernel log (119 and 120 above all); if it persists, reboot the "
    "node: nothing else frees a call that hangs in the driver",
}
"""Remedies by cause; else that of `NVIDIA.down`."""
RECOVERY = {
    "gpu_reset": "end the jobs on it, then reset it (nvidia-smi --gpu-reset)",
    "node_reboot": "drain and reboot the node",
    "system_reboot": "drain and reboot the node",
    "bus_reset": "end the jobs on it, then reset its PCIe bus, or reboot the node",
    "drain_p2p": "end the jobs that use it together with other GPUs",
    "drain_and_reset": "let its jobs end, then reset it (nvidia-smi --gpu-reset)",
    "recover_imex_domain": "restart nvidia-imex on the nodes of the NVLink domain",
}
"""Remedies by recovery action."""
_BY_THE_CHART = (
    "give the pod access to the GPUs with the chart's values gpu.access and gpu.runtimeClassName, "
    "which its README lists for each platform; "
)
_IN_A_POD: dict[str, str] = {
    "no_library": f"{_BY_THE_CHART}NVIDIA's driver must be installed on the node",
    "not_loaded": f"{_BY_THE_CHART}NVIDIA's driver must be loaded on the node (modprobe nvidia; "
    "dmesg shows why it fails)",
    "no_permission": f"{_BY_THE_CHART}mounting /dev/nvidia0 alone does not allow opening it",
    "no_gpu": f"{_BY_THE_CHART}gpu.visibleDevices selects which",
}
"""Remedies by cause in a pod, with values of the chart."""


def remedy(cause: str) -> str:
    """The remedy for `cause`, in a pod or outside."""
    found = _IN_A_POD.get(cause) if in_a_pod() else None
    return found or OF_ERRORS[cause]


def _device_nodes(gpu: Identity) -> Collection[str]:
    """Nodes of the GPU and of unified memory, which takes a context."""
    if gpu.minor is None or gpu.parent_uuid is not None:
        return ()
    return f"/dev/nvidia{gpu.minor}", "/dev/nvidia-uvm"


NVIDIA = About(
    "NVIDIA",
    sees_all_namespaces=False,
    daemons=frozenset({"nvidia-cuda-mps"}),  # nvidia-cuda-mps-control and nvidia-cuda-mps-server
    device_nodes=_device_nodes,
    error_event="XID",
    down="look for XIDs in the kernel log; reset the GPU or reboot the node",
    hung=OF_ERRORS["hung"],
    forbidden=OF_ERRORS["no_permission"],
    seen=seen,
    signals={
        "busy_time": "A100 and A30 under MIG, Orin and some vGPU have neither utilization nor GPM: "
        "busy and idle time, and what a GPU waits for, are unknown; turn MIG off on A100 and A30, "
        "or use Hopper or later",
        "utilization_samples": "MIG, vGPU and integrated GPUs have no sample ring",
        "gpm": "GPM needs Hopper or later and driver 525 or later: without it there are no SM, "
        "tensor, DRAM, PCIe or NVLink counters",
        "energy": "the energy counter needs Volta or later and no vGPU",
        "throttle_counters": "the driver counts no throttle time",
        "processes": "the driver lists no processes: run in the host's PID namespace and, under "
        "MIG, with access to /dev/nvidia-caps (mig monitor)",
        "xid_events": "the driver reports no events: watch the kernel log for XIDs",
    },
)
