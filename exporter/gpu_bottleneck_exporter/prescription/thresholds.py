"""Thresholds by which settings are recommended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdviceThresholds:
    """The thresholds of advice, each with its source, or the word judged."""

    healthy: float = 0.85
    """Busy share from which nothing is prescribed: well tuned, by platform teams."""
    min_busy: float = 0.01
    """Judged: busy share below which the GPU counts as unused."""
    min_gain: float = 0.05
    """Judged: minimum gain in busy share; less is noise."""
    prediction_error: float = 0.12
    """Relative error of nine of ten predictions, at most (`tests/prescriptions`)."""
    min_cause_share: float = 0.4
    """Minimum share of idle time of a dominant cause (`gpu:threshold:evidence`)."""
    min_wait_share: float = 0.1
    """Judged: share of time below which a wait is not evaluated."""
    saturated_share: float = 0.9
    """Judged: busy share of a disk or interface above which requests only queue."""
    target_throughput: float = 0.95
    """Judged: share of the throughput with unlimited workers; the rest takes many of them."""
    min_count: float = 0.5
    """Judged: mean cores, workers or threads below which none counts."""
    negligible_cores: float = 0.1
    """Judged: cores per worker below which more need no free cores."""
    window_seconds: float = 60.0
    """Judged: observed time behind an advice, for slow batches."""
    min_window_seconds: float = 15.0
    """Judged: minimum of that time."""
    samples_per_batch: int = 6
    """Judged: samples per mean batch time, the time resolution."""
    min_pause_seconds: float = 0.005
    """Minimum pause between samples of batches, which bounds the cost."""
    min_batches: int = 32
    """Judged: minimum number of batches for a spread."""
    moment_order: float = 1.5
    """Order of the moment behind the spread: the second takes far more batches, the logarithm
    misses rare slow ones."""


ADVICE = AdviceThresholds()
