"""A server that answers as Compute Engine does, for the tests of a file, and the provider that asks it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gcp_server import ComputeServer
from gcp_state import Clock
from gcp_world import GcpWorld, world_on


@pytest.fixture(scope="module")
def compute() -> Iterator[ComputeServer]:
    with ComputeServer(Clock()) as server:
        yield server


@pytest.fixture
def gcp(compute: ComputeServer) -> Iterator[GcpWorld]:
    yield from world_on(compute)
