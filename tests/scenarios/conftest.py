"""The marker of the scenarios."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "scenarios: real processes that compete for the CPUs; nothing may run beside"
    )
