"""Thresholds by which idle time is attributed to causes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StallThresholds:
    """The thresholds of stalls, each with its source, or the word judged."""

    sample_ttl_ns: int = 1_500_000_000
    """Judged: lifetime of a state sample; tolerance for counters read outside the window."""
    min_data_bytes: int = 2**18
    """Judged: bytes in a second or two that are more than logs and settings."""
    max_log_share: float = 0.05
    """Judged: share of the bytes written that may be logs."""
    max_carry_ns: float = 1e9
    """Bound on the carried I/O time, and so on the error when a main that does I/O falls asleep.
    Half of a tick, if that is more."""
    max_sigma: int = 3
    """Deviations within three standard errors are sampling noise."""
    bulk_bytes_per_second: float = 20e6
    """Judged: rate of file data above which copying it takes the kernel's CPU time."""
    max_refault_ratio: int = 3
    """Judged: refaults above this multiple of the bytes read belong to other processes of the
    control group. Above 1, as both counters are not read at the same moment."""
    thrashing_bytes_per_second: int = 256 * 1024
    """Rate of refaults below which nothing is delayed: a seeking disk reads far more."""


STALLS = StallThresholds()
