"""Which children of a main hand nothing over."""

from __future__ import annotations

from gpu_bottleneck_exporter.feeders.usage import Handovers


def test_a_child_that_hands_nothing_over_is_no_worker() -> None:
    handovers = Handovers()
    for _ in range(60):
        for worker, calls in ((1, 14), (2, 0), (3, 12)):
            handovers.note(worker, calls)
    assert handovers.idlers() == 1
    for _ in range(250):
        for worker, calls in ((1, 14), (2, 20), (3, 0)):
            handovers.note(worker, calls)
    assert handovers.idlers() == 1, "it is now that counts"
    handovers.forget()
    assert handovers.idlers() == 0


def test_no_child_is_judged_at_once_nor_without_permission() -> None:
    handovers = Handovers()
    handovers.note(1, 50)
    handovers.note(2, 0)
    assert handovers.idlers() == 0
    blind = Handovers()
    for _ in range(20):
        blind.note(1, 0)
        blind.note(2, 0)
    assert blind.idlers() == 0
