"""A field of an answer is told once: commands' documents, REST, the OpenAPI document and the client have it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import requests
from scavenger_cli.main import main
from server_world import World

from scavenger.api import pool
from scavenger.server import app
from scavenger.server.serving import serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store
from tests.golden.documents import POOL


@pytest.fixture
def wider(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the pool with one line more: a field that the pool's manager measures."""
    source = Path(pool.__file__).read_text()
    line = "    idle_usd: float | None\n"
    module = ModuleType("wider_pool")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(
        compile(source.replace(line, f"{line}    bytes_per_s: int\n", 1), pool.__file__, "exec"),
        module.__dict__,
    )
    return module


def test_a_field_that_is_added_to_the_pools_answer_is_one_line(
    wider: ModuleType,
    store: Store,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("scavenger.train.pool.connection.load_of", lambda _: POOL)
    monkeypatch.setattr("scavenger_cli.commands.aggregators.pool", wider)
    monkeypatch.setattr("scavenger.server.app.pool", wider)
    # neither those of the tests before it, nor its own for those after it
    monkeypatch.setattr("scavenger.server.app._routes", app._routes.__wrapped__)
    monkeypatch.delenv("SCAVENGER_SERVER", raising=False)

    assert main(["aggregators", "-o", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [node["bytes_per_s"] for node in printed["pool"]["nodes"]] == [0, 0]

    with serving(store, ServerSettings(port=0)) as url:
        headers = world.headers("root")
        assert requests.get(f"{url}/v1/aggregators", headers=headers, timeout=60).json() == printed

        document = requests.get(f"{url}/openapi.json", headers=headers, timeout=60).json()
        told = document["components"]["schemas"]["PoolNode"]
        assert told["properties"]["bytes_per_s"]["type"] == "integer"
        assert "bytes_per_s" in told["required"]

        monkeypatch.setenv("SCAVENGER_SERVER", url)
        monkeypatch.setenv("SCAVENGER_TOKEN", world.tokens["root"])
        assert main(["aggregators", "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == printed  # as the client has read it
