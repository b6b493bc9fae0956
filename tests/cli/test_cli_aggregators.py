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
from scavenger.train.pool.protocol import Change, Drained, JobUse, NodeLoad, PoolLoad, TenantLoad

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
        NodeLoad(Node("node-0", (14, 15), 8 * GIB, 4), 1.5, 2 * GIB, 2, 0.44),
        NodeLoad(Node("node-1", (12, 13), 8 * GIB, 4), 0.1, GIB, 1),
        NodeLoad(Node("node-2", (10, 11), 8 * GIB, 4), 0.0, 0, 0, drained=True),
    ),
    tenants=(
        tenant("a-job-with-a-name-of-many-words", "aggregator-0", "node-0", 1.4),
        tenant("a-job-with-a-name-of-many-words", "aggregator-15", "node-0", 0.1),
        tenant("b", "aggregator-0", "node-1", 0.1),
    ),
    jobs=(
        JobUse("a-job-with-1234", "a-job-with-a-name-of-many-words", 172_680.0, 0.1234, 0.1302, 0.052),
        JobUse("b-1234", "b", 86_340.0),
    ),
    changes=(Change(SINCE, "node-1 begun", "aggregator-0 of job b-1234#2 begins on node-1", 2),),
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
    assert out.splitlines()[1] == "2 of 3 nodes in use, room for 5 aggregators more"
    rows = [line.split() for line in out.splitlines()]
    assert ["node-0", "in", "use", "2", "75%", "44%", "2", "2", "GiB", "of", "8", "GiB"] in rows
    assert ["node-2", "drained"] in [row[:2] for row in rows]
    assert ["b-1234", "b", "-", "-", "-", "86,300", "s", "$3.21"] in rows
    (job,) = [row for row in rows if "a-job-wit…" in row]
    assert job[2:] == ["123", "ms", "130", "ms", "5.2%", "173,000", "s", "$6.43"]
    (first,) = [row for row in rows if "70%" in row]
    assert first[:4] == ["a-job-wi", "aggregator-0", "node-0", "70%"]
    assert "node-1 begun" in out
    assert first[-4:] == ["4", "d", "4", "h"]
    assert "groups of sessions" in out


@pytest.mark.usefixtures("_served")
def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aggregators", "-o", "json"]) == 0

    pool = json.loads(capsys.readouterr().out)["pool"]
    assert pool["free"] == 5
    assert [node["processors"] for node in pool["nodes"]] == [[14, 15], [12, 13], [10, 11]]
    assert [node["state"] for node in pool["nodes"]] == ["in_use", "in_use", "drained"]
    assert pool["jobs"][0]["cost_usd"] == pytest.approx(172_680 / 3600 * pool["usd_per_cpu_hour"])
    assert pool["changes"][0]["in_use"] == 2
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


def test_a_node_is_drained_or_it_says_why_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, bool]] = []
    answers = iter([Drained(3), Drained(0), Drained(1), Drained(0, "the pool has no node node-9"), None])

    def drain(_: Path, node: str, *, undo: bool) -> Drained | None:
        asked.append((node, undo))
        return next(answers)

    monkeypatch.setattr(connection, "drain", drain)

    assert main(["aggregators", "drain", "node-1"]) == 0
    assert capsys.readouterr().out == "node-1 is drained: 3 aggregators moved.\n"
    assert main(["aggregators", "drain", "node-1", "--undo"]) == 0
    assert capsys.readouterr().out == "node-1 gets aggregators again.\n"
    assert main(["aggregators", "drain", "node-1", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["moved"] == 1
    assert main(["aggregators", "drain", "node-9"]) == 2
    assert "no node node-9" in capsys.readouterr().err
    assert main(["aggregators", "drain", "node-1"]) == 2
    assert "no pool is served" in capsys.readouterr().err
    assert asked[:2] == [("node-1", False), ("node-1", True)]
