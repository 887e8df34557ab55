"""The marker of the stacks."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "stacks: real loading libraries, measured; nothing may run beside"
    )
