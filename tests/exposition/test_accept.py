"""Which of the two formats a client would rather have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.exposition.accept import prefers_openmetrics, weights

OPENMETRICS = "application/openmetrics-text"
PROMETHEUS_2 = (
    f"{OPENMETRICS};version=1.0.0;q=0.8,{OPENMETRICS};version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    f"{OPENMETRICS};version=1.0.0;escaping=allow-utf-8;q=0.6,{OPENMETRICS};version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
TEXT_FIRST = f"text/plain;version=0.0.4;q=0.6,{OPENMETRICS};version=1.0.0;q=0.5,*/*;q=0.2"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        (TEXT_FIRST, False),
        (BROWSER, False),
        ("text/plain", False),
        (OPENMETRICS, True),
        (f"{OPENMETRICS};q=0", False),
        (f"{OPENMETRICS};version=1.0.0;Q=0,text/plain;q=0.1", False),
        (f"text/plain,{OPENMETRICS}", True),
        (f"text/plain;q=0.5,{OPENMETRICS};q=0.4", False),
        (f"{OPENMETRICS};q=0.1,*/*;q=0", True),
        (f"text/plain;q=0,*/*,{OPENMETRICS};q=0", False),
        (f"{OPENMETRICS};q=nan", False),
    ],
)
def test_which_format(accept: str, *, openmetrics: bool) -> None:
    assert prefers_openmetrics(accept) is openmetrics


@given(st.text())
def test_any_header_gets_a_verdict(header: str) -> None:
    assert prefers_openmetrics(header) in (True, False)
    assert all(weight >= 0 for weight in weights(header).values())
