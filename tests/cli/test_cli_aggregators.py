"""`scavenger aggregators`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, tzinfo
from pathlib import Path

import pytest
from scavenger_cli.commands import aggregators
from scavenger_cli.main import main

from scavenger.train.pool import connection
from scavenger.train.pool.placement import Node
from scavenger.train.pool.protocol import (
    AddNode,
    Change,
    Drained,
    JobUse,
    NodeAdded,
    NodeUsage,
    PoolLoad,
    RentalLoad,
    TenantLoad,
)

GIB = 1 << 30
NOW = datetime(2026, 3, 5, 12, tzinfo=UTC)
SINCE = NOW.timestamp() - 100 * 3600.0


def tenant(job: str, name: str, node: str, load_cpus: float) -> TenantLoad:
    return TenantLoad(f"{job}-1234-5678", job, name, node, 4_194_303, SINCE, 86_340.0, load_cpus, 1023 << 20)


LOAD = PoolLoad(
    pid=4_194_303,
    since=SINCE,
    shares="session",
    tenant_memory_bytes=GIB,
    free=5,
    nodes=(
        NodeUsage(Node("node-0", (14, 15), 8 * GIB, 4), 1.5, 2 * GIB, 2, 0.44),
        NodeUsage(Node("node-1", (12, 13), 8 * GIB, 4), 0.1, GIB, 1),
        NodeUsage(Node("node-2", (10, 11), 8 * GIB, 4), 0.0, 0, 0, drained=True),
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


REMOTE = PoolLoad(
    pid=4_194_303,
    since=SINCE,
    shares="cgroup",
    tenant_memory_bytes=GIB,
    free=0,
    nodes=(
        NodeUsage(
            Node("agg-1", (0, 1), 8 * GIB, 4, "aws/us-east-1", "192.0.2.11", 0.34), 0.5, GIB, 3, 0.2, pinned=1,
            idle_usd=1.25, drained=True,
        ),
        NodeUsage(Node("agg-2", (0, 1), 8 * GIB, 4, "aws/us-east-1", "192.0.2.12", 0.34), 0.0, 0, 0),
    ),
    tenants=(tenant("a", "aggregator-1", "agg-1", 0.5),),
    jobs=(JobUse("a-1234-5678", "a", 86_340.0, usd=0.5),),
    address="192.0.2.1",
    expected=("agg-3",),
)  # fmt: skip


RENTED = PoolLoad(
    pid=4_194_303,
    since=SINCE,
    shares="cgroup",
    tenant_memory_bytes=GIB,
    free=0,
    nodes=(
        NodeUsage(
            Node("rented-11", (0, 1), 8 * GIB, 4, "gcp/us-central1", "10.128.100.111", 0.134),
            0.5,
            GIB,
            1,
            idle_usd=12.25,
        ),
    ),
    tenants=(),
    address="10.128.0.2",
    expected=("rented-12",),
    rental=RentalLoad(
        place="gcp/us-central1",
        machine="e2-standard-4",
        usd_per_hour=0.137,
        nodes_max=4,
        idle_s=300.0,
        since={"rented-11": SINCE, "rented-12": SINCE + 359_000.0},
        free=12,
        spent_usd=14.5,
        idle_usd=12.25,
        shortage="sold out, to be tried again later",
    ),
)


def test_rented_nodes_are_shown_with_their_age_price_and_idle_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "load_of", lambda _: RENTED)

    assert main(["aggregators"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    (row,) = [line.split() for line in out.splitlines() if "10.128.100.111" in line]
    assert row[-6:] == ["4", "d", "4", "h", "$0.134", "$12.25"]
    told = " ".join(out.split())
    assert "rented at gcp/us-central1: 2 nodes of at most 4, each a e2-standard-4 at $0.137 per hour" in told
    assert "$14.50 so far, $12.25 of it idle" in told
    assert "a node cannot be had: sold out" in told
    assert "room for 15 aggregators more" in told

    assert main(["aggregators", "-o", "json"]) == 0
    rental = json.loads(capsys.readouterr().out)["pool"]["rental"]
    assert (rental["vm"], rental["nodes_max"], rental["cost_usd"]) == ("e2-standard-4", 4, 14.5)
    assert set(rental["since"]) == {"rented-11", "rented-12"}


class At(datetime):
    """A clock that stands still: ages are shown in hours, and a suite may take one."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return NOW.astimezone(tz)


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregators, "datetime", At)


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
    assert ["b-1234", "b", "-", "-", "-", "23", "h", "59", "min", "$3.21"] in rows
    (job,) = [row for row in rows if "a-job-wit…" in row]
    assert job[2:] == ["123", "ms", "130", "ms", "5.2%", "47", "h", "58", "min", "$6.43"]
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
    assert main(["aggregators"]) == 0


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


def test_other_machines_are_shown_with_their_price_and_what_of_it_nobody_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "load_of", lambda _: REMOTE)

    assert main(["aggregators"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    lines = [line.split() for line in out.splitlines()]
    assert ["agg-1", "192.0.2.11", "aws/us-east-1", "$0.34", "$1.25"] in lines
    assert "room for 4 aggregators more" in out
    assert "expected: agg-3" in out
    assert any(line[:2] == ["agg-1", "draining"] for line in lines)
    assert any(line[0] == "a-1234-5" and line[-1] == "$0.50" for line in lines if line)

    assert main(["aggregators", "-o", "json"]) == 0
    pool = json.loads(capsys.readouterr().out)["pool"]
    (one, two) = pool["nodes"]
    assert (one["machine"], one["place"], one["usd_per_hour"], one["idle_usd"], one["pinned"]) == (
        "192.0.2.11",
        "aws/us-east-1",
        0.34,
        1.25,
        1,
    )
    assert two["state"] == "empty"
    assert pool["jobs"][0]["cost_usd"] == 0.5


def test_the_join_file_of_a_node_is_private_and_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[AddNode] = []
    answers = iter([NodeAdded("the ticket"), NodeAdded(error="the pool has a node agg-1"), None])

    def add_node(_: Path, request: AddNode) -> NodeAdded | None:
        asked.append(request)
        return next(answers)

    monkeypatch.setattr(connection, "add_node", add_node)
    file = tmp_path / "join.json"
    command = ["aggregators", "add-node", "agg-1", "--file"]

    assert main([*command, str(file), "--place", "aws/us-east-1a", "--price", "0.34"]) == 0
    assert "agg-1 is expected" in capsys.readouterr().out
    assert asked == [AddNode("agg-1", "aws/us-east-1", 0.34, 8)]
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("the ticket", 0o600)

    assert main([*command, str(file)]) == 2
    assert "exists" in capsys.readouterr().err
    other = tmp_path / "other.json"
    assert main([*command, str(other)]) == 2
    assert "has a node agg-1" in capsys.readouterr().err
    assert main([*command, str(other)]) == 2
    assert "no pool is served" in capsys.readouterr().err
    assert main([*command, str(other), "--place", "kubernetes"]) == 2
    assert "cannot share aggregators" in capsys.readouterr().err
    assert not other.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--infra", "aws/us-east-1"], "set SCAVENGER_ADDRESS"),
        (["--infra", "local", "--listen", "127.0.0.1"], "aws/REGION or gcp/REGION"),
        (
            ["--infra", "aws/us-east-1", "--listen", "127.0.0.1", "--idle-duration", "soon"],
            "--idle-duration soon",
        ),
        (["--nodes", "0"], "without --listen"),
        (["--listen", ":7"], "no address"),
    ],
)
def test_a_pool_that_cannot_be_served_is_refused(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["aggregators", "serve", *options]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
