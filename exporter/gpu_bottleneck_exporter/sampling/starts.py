"""Counts the jobs that start on one GPU, and how many of them reach work."""

from __future__ import annotations

REACHED_WORK_NS = 10_000_000_000
"""Busy time, or time without a request of a server that is up, after which a job has reached work.

A job that crashes while it starts has used the GPU for less: to load weights, to try a batch."""


class Starts:
    """Starts on one GPU since the exporter started.

    A job has started when processes hold the GPU and the first ones of the job before have left.
    A second process of a job is no start, nor is a job that was there before the exporter.
    """

    def __init__(self) -> None:
        self.total: int | None = None
        """None until the processes on the GPU are known."""
        self.productive = 0
        """Starts that reached work."""
        self._holders: frozenset[int] = frozenset()
        """Pids of the current job's first processes that are still there."""
        self._worked_before_ns: int | None = None
        """Sum of work at the current job's start; None once the job is counted, or never was."""

    def note_holders(self, pids: frozenset[int], worked_ns: int) -> None:
        """Note the processes that hold the GPU, whose work adds up to `worked_ns` by now."""
        self.note_work(worked_ns)
        if self.total is None:
            self.total, self._holders = 0, pids
            return
        self._holders &= pids
        if pids and not self._holders:
            self.total += 1
            self._holders, self._worked_before_ns = pids, worked_ns

    def note_work(self, worked_ns: int) -> None:
        """Note the sum of work, also what is measured after the job has ended."""
        before_ns = self._worked_before_ns
        if before_ns is not None and worked_ns - before_ns >= REACHED_WORK_NS:
            self.productive += 1
            self._worked_before_ns = None
