"""What tests of the core share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replayd.service import Service


@pytest.fixture
def made() -> Iterator[list[Service]]:
    """Services whose counts are re-derived at the end of the test."""
    services: list[Service] = []
    yield services
    for each in services:
        each.validate()
