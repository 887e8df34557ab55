from __future__ import annotations

import pytest

from gpu_bottleneck_exporter.host.pressure import stalled_ns

SOME = "some avg10=0.00 avg60=0.00 avg300=0.00 total=123\n"
FULL = "full avg10=0.00 avg60=0.00 avg300=0.00 total=4\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (SOME + FULL, {"some": 123_000, "full": 4000}),
        (SOME, {"some": 123_000}),
        (FULL, {"full": 4000}),
        ("", {}),
        ("some avg10=0.00 total=\n", {}),
        ("some total=-1\nfull total=x\nother total=5\n", {}),
        ("\0\0garbage", {}),
    ],
)
def test_what_a_pressure_file_says(text: str, found: dict[str, int]) -> None:
    assert stalled_ns(text) == found
