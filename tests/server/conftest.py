"""A server over a SQLite store of its own, called in this process without sockets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from server_world import World, build
from starlette.testclient import TestClient

from scavenger.server.app import create_app
from scavenger.store import Store


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, World]:
    """A folder with a store that is migrated and filled once; each test has a copy."""
    folder = tmp_path_factory.mktemp("world")
    with Store.open(f"sqlite:///{folder}/store.db") as opened:
        made = build(opened, folder)
    return folder, made


@pytest.fixture
def store(tmp_path: Path, template: tuple[Path, World]) -> Iterator[Store]:
    shutil.copy(template[0] / "store.db", tmp_path)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


@pytest.fixture
def app(store: Store) -> FastAPI:
    return create_app(store)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    """A client without a token."""
    with TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as started:
        yield started


@pytest.fixture
def logs(world: World) -> Iterator[Path]:
    """The folder of the logs of ann's job, which goes with the test: the folder of the world is shared."""
    folder = world.job_file.parent / ".scavenger" / world.jobs["ann"] / "logs"
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def world(template: tuple[Path, World]) -> World:
    """Users with tokens, and jobs of two of them."""
    return template[1]
