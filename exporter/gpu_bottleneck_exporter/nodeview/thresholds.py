"""Thresholds of verdicts and lists, each with its source, or judged."""

KEPT_BUSY_RATIO = 0.9
"""Busy share from which a GPU has no bottleneck. Judged."""
MIN_STARVED_RATIO = 0.15
"""Judged: idle share above which a GPU counts as starved."""
MIN_OBSERVED_SECONDS = 10.0
"""Judged: observed time before a verdict."""
MIN_LINE_RATIO = 0.1
"""Smallest share of a line's time that is named. Judged."""
MIN_SHOWN_RATIO = 0.005
"""Smallest share listed: half of the last digit of a percentage."""
