"""The GPUs on which the driver's answers were seen."""

from __future__ import annotations

from gpu_bottleneck_exporter.driver.nvml.findings import findings


def table() -> str:
    """All findings as a Markdown table."""
    head = "| model | driver | seen | source |\n|---|---|---|---|"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in findings())])
