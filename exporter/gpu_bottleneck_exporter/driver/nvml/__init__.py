"""NVIDIA's driver through pynvml; FINDINGS.md lists the behaviour that it relies on."""
