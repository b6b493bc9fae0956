"""One control plane for all tests of a run, where its programs are built."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from machines import AGENT, Machines, unavailable

from tests.cluster.binaries import missing

UNTIL_VARIABLE = "SCAVENGER_CLUSTER_TESTS_UNTIL"
"""Environment variable with the time, in seconds of the epoch, after which no test begins that needs a cluster."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """In CI, what would begin too late is left out, and says so."""
    until = float(os.environ.get(UNTIL_VARIABLE) or "inf")
    if "plane" in getattr(item, "fixturenames", ()) and time.time() > until:
        pytest.skip("no time is left for what needs a cluster")


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    if reason := missing():
        pytest.skip(reason)
    from tests.cluster.control_plane import running_control_plane

    with running_control_plane(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Machines that pods run on: network namespaces of this one."""
    if reason := unavailable():
        pytest.skip(reason)
    with Machines(AGENT) as found:
        yield found
