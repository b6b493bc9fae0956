"""A store of its own for each test, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scavenger import Client


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(store=url) as opened:
        yield opened
