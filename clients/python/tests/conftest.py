"""Fixtures of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulation import World


@pytest.fixture(params=["threads", "asyncio"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A simulated world, for each flavour."""
    world = World(request.param)
    yield world
    world.close()
