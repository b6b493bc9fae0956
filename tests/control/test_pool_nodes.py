"""The VMs of a pool's nodes, at a scripted cloud: on record before they are asked for, and gone with their manager."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake import FakeProvider, Fault
from scavenger_cli.main import main
from waiting import eventually

from scavenger.control.places.pool_nodes import POOL_NAME, PoolNodes, PoolNodesSpec
from scavenger.control.provisioning.clean_up import CleanUp
from scavenger.domain.intent import PlacementOption
from scavenger.domain.vm import LaunchTemplate, VmPackage
from scavenger.errors import StockOutError
from scavenger.policy.provisioning.config import Backoff, LookLimits, ProvisioningConfig, RetryWaits
from scavenger.store import Store
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.pool.growth import RentalLimits
from scavenger.train.pool.placement import Node

pytestmark = pytest.mark.slow

CONFIG = ProvisioningConfig(
    0.3,
    look=LookLimits(interval_s=0.05, list_interval_s=0.1, vm_interval_s=0.1),
    waits=RetryWaits(*[Backoff(0.05, 0.1)] * 6),
)


@pytest.fixture
def cloud() -> FakeProvider:
    made = FakeProvider()
    made.stop_s = 0.0
    return made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AgentServer]:
    (tmp_path / "empty").mkdir()
    made = AgentServer("127.0.0.1", tmp_path / "empty")
    made.start()
    yield made
    made.close()


def nodes_at(cloud: FakeProvider, store: Store, tmp_path: Path) -> PoolNodes:
    price = 0.36
    spec = PoolNodesSpec(
        node=Node("", (0, 1), 1 << 32, 8, f"{cloud.name}/{cloud.region}", "small", price + 0.04),
        limits=RentalLimits(2, 60.0),
        options=tuple(PlacementOption("small", zone, False, price) for zone in cloud.zones("small")),
        template=LaunchTemplate(run_max_s=36_000.0),
        package=VmPackage(requirement="scavenger-ml"),
    )
    return PoolNodes(store, cloud, spec, record=tmp_path / "pool", config=CONFIG)


def living(cloud: FakeProvider) -> list[str]:
    return [fact.token for fact in cloud.truth() if fact.alive]


def test_each_node_is_a_vm_with_a_record_and_ends_when_it_is_not_wanted(
    cloud: FakeProvider, store: Store, server: AgentServer, tmp_path: Path
) -> None:
    nodes = nodes_at(cloud, store, tmp_path)
    nodes.open(server)
    try:
        assert living(cloud) == []
        nodes.want([1, 2])
        assert eventually(lambda: len(nodes.look()) == 2 and len(living(cloud)) == 2)
        machines = {machine.number: machine for machine in nodes.look()}
        assert {machine.intent for machine in machines.values()} == set(living(cloud))
        (record,) = store.running_jobs()
        assert (record.name, record.state) == (POOL_NAME, "running")
        assert {fact.owner for fact in cloud.truth()} == {store.installation()}

        nodes.want([2])

        assert eventually(lambda: living(cloud) == [machines[2].intent])
        assert eventually(lambda: any(one.ending and not one.wanted for one in nodes.look()))
    finally:
        nodes.close()
    assert living(cloud) == []
    assert store.is_clean(record.id)
    assert store.job(record.id).state == "stopped"
    assert ("remove_leftovers", store.installation()) in cloud.calls


def test_each_vm_joins_with_a_key_of_its_own_that_no_record_has(
    cloud: FakeProvider, store: Store, server: AgentServer, tmp_path: Path
) -> None:
    nodes = nodes_at(cloud, store, tmp_path)
    nodes.open(server)
    try:
        nodes.want([1])
        assert eventually(lambda: len(living(cloud)) == 1)
        (token,) = living(cloud)
        secret = server.expect(token, role="aggregator", vm="small", threads=1)
        (vm,) = cloud._vms.values()
        assert vm.request is not None
        assert secret in vm.request.template.user_data
        (intent,) = store.intents()
        assert secret not in intent.request.template.user_data
    finally:
        nodes.close()


def test_a_vm_that_cannot_be_had_is_told(
    cloud: FakeProvider, store: Store, server: AgentServer, tmp_path: Path
) -> None:
    for zone in cloud.zones("small"):
        cloud.stock_out(zone)
    nodes = nodes_at(cloud, store, tmp_path)
    nodes.open(server)
    try:
        nodes.want([1])
        assert nodes._group is not None
        nodes._group._done_at.clear()
        assert eventually(
            lambda: (nodes.look() is not None and bool(nodes.shortage)) or nodes._group._done_at.clear()
        )
        assert living(cloud) == []
    finally:
        nodes.close()


def test_why_a_node_does_not_come_is_told_with_its_console_as_for_the_vms_of_a_job(
    cloud: FakeProvider,
    store: Store,
    server: AgentServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = nodes_at(cloud, store, tmp_path)
    nodes.open(server)
    try:
        nodes.want([1])
        for ended in range(2):  # a VM that has ended is replaced, and that one fails alike
            assert eventually(lambda: nodes.look() and len(living(cloud)) == 1)
            vm = [*cloud._vms][-1]
            cloud.write_console(vm, "scavenger: booting\nError: No space left on device\n")
            assert eventually(lambda: nodes.look() and "No space left" in caplog.text)
            assert nodes.shortage == ""
            cloud._end(vm, "TERMINATED")
            path = tmp_path / "pool" / "consoles" / f"console-{vm}.log"
            assert ended or path.read_text().startswith("scavenger: booting")
        assert eventually(lambda: nodes.look() and "failed alike" in nodes.shortage)
    finally:
        nodes.close()
    assert "node rented-1 (" in caplog.text


def test_what_a_manager_that_was_killed_has_left_is_found_and_the_next_one_ends_it(
    cloud: FakeProvider, store: Store, server: AgentServer, tmp_path: Path
) -> None:
    killed = nodes_at(cloud, store, tmp_path)
    killed.open(server)
    killed.want([1])
    assert eventually(lambda: len(living(cloud)) == 1)
    assert killed._group is not None
    killed._group.stop(10.0)
    assert CleanUp(store, cloud).find() == (), "while its process lives, its VM is wanted"
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE jobs SET owner_pid = 2147483647")

    (left,) = CleanUp(store, cloud).find()
    assert left.vm.tags.token in living(cloud)

    again = nodes_at(cloud, store, tmp_path)
    again.open(server)
    try:
        assert eventually(lambda: living(cloud) == [])
        assert again.look() == (), "they are none of its own"
    finally:
        again.close()
    assert not store.intents(living=True)


def test_what_a_killed_manager_has_left_gc_ends(
    cloud: FakeProvider, store: Store, server: AgentServer, tmp_path: Path
) -> None:
    killed = nodes_at(cloud, store, tmp_path)
    killed.open(server)
    killed.want([1, 2])
    assert eventually(lambda: len(living(cloud)) == 2)
    assert killed._group is not None
    killed._group.stop(10.0)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE jobs SET owner_pid = 2147483647")

    clean_up = CleanUp(store, cloud, sleep=lambda seconds: cloud.advance(seconds))
    left = clean_up.end(clean_up.find())

    assert left == ()
    assert living(cloud) == []
    assert not store.intents(living=True)


def test_an_end_that_the_cloud_does_not_carry_out_at_first_is_asked_for_again(
    cloud: FakeProvider, store: Store, server: AgentServer, tmp_path: Path
) -> None:
    nodes = nodes_at(cloud, store, tmp_path)
    nodes.open(server)
    nodes.want([1])
    assert eventually(lambda: len(living(cloud)) == 1)
    cloud.script("terminate", *[Fault(StockOutError("no"))] * 2)

    nodes.close()

    assert living(cloud) == []


def test_commands_show_the_record_of_a_pool_and_refuse_to_operate_on_it(
    cloud: FakeProvider,
    store: Store,
    server: AgentServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes = nodes_at(cloud, store, tmp_path)
    nodes.open(server)
    try:
        nodes.want([1])
        assert eventually(lambda: len(nodes.look()) == 1)
        (record,) = store.running_jobs()
        for command in (
            ["status"],
            ["status", record.id],
            ["cost", record.id],
            ["cost"],
            ["status", "-o", "json"],
        ):
            assert main([*command, "--store", store.url]) == 0, command
            assert record.id[:8] in capsys.readouterr().out
        for command in (["stop", record.id], ["scale", record.id, "-k", "2"]):
            assert main([*command, "--store", store.url]) == 2
            assert "is no job, but a pool" in " ".join(capsys.readouterr().err.split())
    finally:
        nodes.close()
    assert main(["resume", record.id, "--yes", "--store", store.url]) == 2
