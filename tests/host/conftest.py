from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.programs import descriptors


@pytest.fixture(autouse=True)
def descriptors_are_given_back() -> Iterator[None]:
    """All that were opened to look at a job."""
    before = descriptors()
    yield
    assert descriptors() <= before
