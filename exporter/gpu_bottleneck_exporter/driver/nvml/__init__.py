"""NVIDIA's driver through pynvml; FINDINGS.md lists the driver behaviour that it relies on."""
