"""Fixtures: the embedded API and a scheduler that uses it."""

from collections.abc import AsyncIterator

import pytest
from tests.scheduler.stage import Stage, open_server, open_stage

from kubelite import KubeLite


@pytest.fixture
async def server() -> AsyncIterator[KubeLite]:
    async with open_server() as server:
        yield server


@pytest.fixture
async def stage(server: KubeLite) -> AsyncIterator[Stage]:
    async with open_stage(server) as stage:
        yield stage
