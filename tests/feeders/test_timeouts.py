"""How long answers may take: learned from those that fed the GPU."""

from __future__ import annotations

import pickle
import time

from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.host.files import MAX_CACHE_ENTRIES
from gpu_bottleneck_exporter.host.sockets import Endpoint
from support.rows import rows

LONGEST_MS = 30_000
STORE = Endpoint(bytes([10, 0, 0, 2]), 443)
OTHER = STORE._replace(port=80)


def works(patience: AnswerTimeouts) -> None:
    patience.worked_ns = time.monotonic_ns()


@rows(
    "answers, patience",
    {
        "at first": ([], JUDGED.min_response_timeout_ms),
        "quick ones": ([10, 500, 1_400], JUDGED.min_response_timeout_ms),
        "one that was slow by chance": ([8_000], JUDGED.min_response_timeout_ms),
        "two": ([8_000, 8_100], 16_000),
        "among quick ones": ([8_000, 10, 10, 9_000], 16_000),
        "never above the longest": ([25_000, 25_000], LONGEST_MS),
        "after hours": ([100_000, 100_000], JUDGED.min_response_timeout_ms),
        "not any more": ([8_000, 8_000, *8 * [10]], JUDGED.min_response_timeout_ms),
    },
)
def test_slow_answers_that_feed_the_gpu_teach(answers: list[int], patience: int) -> None:
    timeouts = AnswerTimeouts(LONGEST_MS)
    for took in answers:
        timeouts.record_response(STORE, took)
        works(timeouts)
    assert timeouts.timeout_for(STORE) == patience
    assert timeouts.timeout_for(OTHER) == JUDGED.min_response_timeout_ms


def test_the_slowest_of_the_answers_that_make_a_step_counts() -> None:
    timeouts = AnswerTimeouts(LONGEST_MS)
    for _ in range(2):
        for took in (10, 8_000, 10):
            timeouts.record_response(STORE, took)
        works(timeouts)
    assert timeouts.timeout_for(STORE) == 16_000
    assert AnswerTimeouts(1_000).timeout_for(STORE) == 1_000


def test_the_gpu_may_have_worked_before_the_answer_was_seen() -> None:
    timeouts = AnswerTimeouts(LONGEST_MS)
    for _ in range(2):
        works(timeouts)
        timeouts.record_response(STORE, 8_000, 500)
    assert timeouts.timeout_for(STORE) == 16_000


def test_a_peer_that_fed_the_gpu_feeds_it_until_a_long_pause() -> None:
    timeouts = AnswerTimeouts(LONGEST_MS)
    works(timeouts)
    assert not any(timeouts.record_response(STORE, 100) for _ in range(9)), "without work"
    assert not timeouts.feeds(STORE)
    for _ in range(2):
        works(timeouts)
        timeouts.record_response(STORE, 100)
    assert timeouts.feeds(STORE)
    assert not timeouts.feeds(OTHER)
    timeouts.worked_ns -= 11_000_000_000
    assert not timeouts.feeds(STORE)


def test_patience_with_many_is_bounded() -> None:
    timeouts = AnswerTimeouts(LONGEST_MS)
    for port in range(2_000):
        timeouts.record_response(STORE._replace(port=port), 10)
        timeouts.record_polled(STORE._replace(port=port))
        assert len(pickle.dumps(vars(timeouts))) < 100 * MAX_CACHE_ENTRIES
