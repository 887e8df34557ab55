"""Thresholds by which waits of feeders are judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitThresholds:
    """The thresholds of waits, each with its source, or the word judged."""

    min_launch_cores: float = 0.0005
    """Judged: minimum CPU use of a thread that launches kernels, in cores."""
    rate_range_seconds: float = 15.0
    """Shortest range of a Prometheus rate in common use."""
    max_variance: float = 0.25
    """Variance of a share of one half, the maximum."""
    min_wait_samples: int = 30
    """Judged: samples of a main, over 3 s, before a descriptor counts as never awaited."""
    io_lifetime_ns: int = 1_000_000_000
    """Judged: time for which file I/O explains a wait, as read-ahead precedes the wait."""
    min_response_timeout_ms: int = 3_000
    """Minimum timeout of a request. Object stores respond within about a second; job queues, long
    polls and dead peers may take forever."""
    min_responses: int = 2
    """Observations that make a pattern, as one response may resemble a stream."""
    min_payload_bytes: int = 64
    """Judged: least size of a payload, unless it feeds the GPU; less is a ping or "nothing new"."""
    min_stream_bytes: int = 4096
    """Judged: minimum size of a part of a stream; keep-alive messages are smaller."""
    max_stream_pause_ms: int = 250
    """Maximum pause between parts of a stream: the time between two samples."""
    max_ack_delay_ms: int = 60
    """Maximum delay of an acknowledgement; Linux delays by 40 ms (TCP_DELACK_MIN)."""
    min_backoff: int = 3
    """Timeouts of a client that does not read: 1.4 s; Nagle's algorithm delays data for less."""
    kernel_tick_ms: int = 10
    """Longest kernel tick (CONFIG_HZ=100)."""
    min_request_bytes: int = 24
    """Minimum size of a request; pings and acknowledgements have 4 (MQTT) to 17 (HTTP/2)."""
    max_ping_ms: int = 30_000
    """Judged: maximum age of a smaller request."""
    max_request_ms: int = 600_000
    """Judged: maximum age of a request."""


JUDGED = WaitThresholds()
