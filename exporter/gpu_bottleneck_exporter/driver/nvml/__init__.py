"""NVIDIA's driver through pynvml; FINDINGS.md says what it relies on."""

from gpu_bottleneck_exporter.driver.nvml.driver import NvmlDriver

__all__ = ["NvmlDriver"]
