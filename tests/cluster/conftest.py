"""One control plane for all tests of a run, where its programs are built."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cloud"))

from tests.cluster.binaries import missing


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    if reason := missing():
        pytest.skip(reason)
    from tests.cluster.control_plane import running_control_plane

    with running_control_plane(tmp_path_factory.mktemp("cluster")) as found:
        yield found
