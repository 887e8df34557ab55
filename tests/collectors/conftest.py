from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/collectors/golden.prom anew instead of comparing with it",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    # pytest knows the option only where this folder was named on its command line.
    return bool(request.config.getoption("--update-golden", default=False))
