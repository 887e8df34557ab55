from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.web.encoding import allows_gzip, gzipped


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("", False),
        ("identity", False),
        ("br, zstd", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("deflate, gzip", True),
        ("gzip;q=0.5", True),
        ("gzip ; q = 0.001", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("gzip; Q=0", False),
        ("*", True),
        ("*;q=0", False),
        ("*, gzip;q=0", False),
        ("gzip;q=0, *;q=1", False),
        ("gzip;q=0, x-gzip", False),
        ("x-gzip;q=0, gzip", False),
        ("gzip, *;q=0", True),
        ("identity;q=1, *;q=0", False),
        ("gzip;q=much", False),
        ("gzip;q=nan", False),
        ("gzip;q=-1", False),
        ("gzip;level=9", True),
        ("gzippy", False),
        (",,;;=", False),
    ],
)
def test_allows_gzip(header: str, allowed: bool) -> None:  # noqa: FBT001 - a parameter of the case
    assert allows_gzip(header) is allowed


@given(st.text())
def test_any_header_gets_a_verdict(header: str) -> None:
    assert allows_gzip(header) in (True, False)


def test_the_same_body_is_compressed_once() -> None:
    body = b"up 1\n" * 1000
    packed = gzipped(body)
    assert gzip.decompress(packed) == body
    assert gzipped(body) is packed


def test_an_equal_but_other_body_and_a_changed_one_are_right_too() -> None:
    first = gzipped(b"up 1\n" * 1000)
    assert gzipped(bytes(bytearray(b"up 1\n" * 1000))) == first
    assert gzip.decompress(gzipped(b"up 0\n")) == b"up 0\n"
    assert gzip.decompress(gzipped(b"")) == b""
