"""Thresholds of verdicts and lists, each with its source; "judged": a value without one."""

KEPT_BUSY_RATIO = 0.9
"""Busy share from which a GPU has no bottleneck. Judged."""
MIN_STARVED_RATIO = 0.15
"""Idle share above which a GPU counts as starved: a busier one is well tuned. Judged."""
MIN_OBSERVED_SECONDS = 10.0
"""Observed time before a verdict: a single second may be chance. Judged."""
MIN_LINE_RATIO = 0.1
"""Smallest share of a line's time that is named. Judged."""
MIN_SHOWN_RATIO = 0.005
"""Smallest share that lists show: half of the last digit of a percentage."""
