"""A small demo, as a real server for the client and the commands."""

from collections.abc import Iterator

import pytest
from dashboard.tools.demo_process import Demo, running_demo

from gpufleet.client import Client


@pytest.fixture(scope="session")
def demo() -> Iterator[Demo]:
    """A demo with four nodes and a few minutes of history."""
    with running_demo(nodes=4, days=0) as started:
        yield started


@pytest.fixture
def client(demo: Demo) -> Iterator[Client]:
    """A client of the demo."""
    with Client(demo.address, environ={}) as opened:
        yield opened
