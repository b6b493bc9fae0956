"""`scavenger aggregators`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from scavenger_cli.commands import aggregators
from scavenger_cli.main import main

from scavenger.train.pool import connection
from scavenger.train.pool.placement import Node
from scavenger.train.pool.protocol import NodeLoad, PoolLoad, TenantLoad

GIB = 1 << 30
SINCE = time.time() - 100 * 3600.0


def tenant(job: str, name: str, node: str, load_cpus: float) -> TenantLoad:
    return TenantLoad(f"{job}-1234-5678", job, name, node, 4_194_303, SINCE, 86_340.0, load_cpus, 1023 << 20)


LOAD = PoolLoad(
    pid=4_194_303,
    since=SINCE,
    shares="session",
    tenant_memory_bytes=GIB,
    free=5,
    nodes=(
        NodeLoad(Node("node-0", (14, 15), 8 * GIB, 4), 1.5, 2 * GIB, 2),
        NodeLoad(Node("node-1", (12, 13), 8 * GIB, 4), 0.1, GIB, 1),
    ),
    tenants=(
        tenant("a-job-with-a-name-of-many-words", "aggregator-0", "node-0", 1.4),
        tenant("a-job-with-a-name-of-many-words", "aggregator-15", "node-0", 0.1),
        tenant("b", "aggregator-0", "node-1", 0.1),
    ),
)


@pytest.fixture
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "load_of", lambda _: LOAD)


@pytest.mark.usefixtures("_served")
def test_nodes_and_tenants_fit_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aggregators"]) == 0

    out, err = capsys.readouterr()
    assert all(len(line) <= 80 for line in out.splitlines())
    assert err == ""
    assert out.splitlines()[0].endswith("room for 5 aggregators more")
    rows = [line.split() for line in out.splitlines()]
    assert ["node-0", "2", "75%", "2", "2", "GiB", "of", "8", "GiB"] in rows
    (first,) = [row for row in rows if "70%" in row]
    assert first[:5] == ["a-job-wi", "a-job-wit…", "aggregator-0", "node-0", "70%"]
    assert first[-4:] == ["4", "d", "4", "h"]
    assert "groups of sessions" in out


@pytest.mark.usefixtures("_served")
def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aggregators", "-o", "json"]) == 0

    pool = json.loads(capsys.readouterr().out)["pool"]
    assert pool["free"] == 5
    assert [node["processors"] for node in pool["nodes"]] == [[14, 15], [12, 13]]
    assert sum(one["share"] for one in pool["tenants"] if one["node"] == "node-0") == pytest.approx(0.75)
    assert {one["job"]["name"] for one in pool["tenants"]} == {"a-job-with-a-name-of-many-words", "b"}


def test_where_none_is_served_it_says_what_starts_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCAVENGER_POOL", str(tmp_path))

    assert main(["aggregators"]) == 0
    assert "`aggregation: shared` starts one" in capsys.readouterr().out
    assert main(["aggregators", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["pool"] is None


def test_a_pool_that_this_machine_cannot_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCAVENGER_POOL", str(tmp_path))

    assert main(["aggregators", "serve", "--cpus", "5000"]) == 2
    assert "cannot have 5000 of this machine's" in capsys.readouterr().err
    assert aggregators.show_pool(as_json=False) == 0
