"""The manager's side of nodes on other machines, with agents that only say what a test has them say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from scripted_machines import SECRET, Pool, scripted_pool

from scavenger.errors import ConfigurationError
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.values import Gone
from scavenger.train.pool import protocol
from scavenger.train.pool.machines import ExpectedNode, Listen, Machines, listen_at


@pytest.fixture
def pool() -> Iterator[Pool]:
    with scripted_pool() as made:
        yield made


def test_a_tenant_gets_the_jobs_one_time_key_and_no_other_and_its_part_of_the_memory(pool: Pool) -> None:
    assert pool.lodge(pool.job("a")).error.startswith("found no room")
    pool.node("one")

    assert pool.lodge(pool.site.jobs[0]).node == "one"

    ((node, config),) = pool.agents.started
    assert (node, config.role, config.name) == ("one", "tenant", "a-aggregator-1-1")
    assert (config.coordinator, config.server_key, config.secret_key) == (
        "tcp://192.0.2.9:1",
        "k" * 40,
        SECRET,
    )
    assert config.memory_bytes == 1 << 29
    assert SECRET not in repr(protocol.Lodge("a", "b", "c", "d", SECRET))


def test_a_node_is_drained_by_asking_the_jobs_which_then_get_a_tenant_elsewhere(pool: Pool) -> None:
    pool.node("one")
    job = pool.job("a")
    pool.lodge(job)
    pool.lodge(job, pinned=True)
    pool.node("two")

    assert pool.site.drain(protocol.DrainRequest("one")) == protocol.Drained(1, later=True)

    (asked,) = pool.told("a")
    assert isinstance(asked, protocol.Vacate)
    assert asked.intent == "a-aggregator-1-1"
    pool.site.ask_again(time.monotonic() + 60.0)
    assert pool.told("a") == [asked], "until it has left"
    pool.site.left(job, asked.intent)
    assert pool.agents.killed == [1]
    assert pool.lodge(job, 2).node == "two"
    pool.site.ask_again(time.monotonic() + 60.0)
    assert pool.told("a") == []
    loads = {one.node.name: (one.tenants, one.pinned, one.drained) for one in pool.site.node_loads()}
    assert loads == {"one": (1, 1, True), "two": (1, 0, False)}


def test_what_sequences_leaves_a_drained_node_if_its_job_can_go_back_to_a_checkpoint(pool: Pool) -> None:
    pool.node("one", tenants_max=4)
    stays, leaves = pool.job("stays"), pool.job("leaves")
    pool.lodge(stays, pinned=True)
    pool.lodge(leaves, pinned=True, movable=True)
    pool.site.drain(protocol.DrainRequest("one"))
    pool.site.ask_again(time.monotonic())
    assert pool.told("leaves") == [], "there is no other node"

    pool.node("two")
    pool.site.ask_again(time.monotonic())

    (asked,) = pool.told("leaves")
    assert isinstance(asked, protocol.Vacate)
    assert pool.told("stays") == []
    pool.site.ask_again(time.monotonic() + 60.0)
    assert pool.told("leaves") == [asked], "until it has left"
    pool.site.left(leaves, asked.intent)
    assert pool.lodge(leaves, 2, pinned=True, movable=True).node == "two"


def test_what_sequences_goes_where_its_job_has_its_other_tenant(pool: Pool) -> None:
    for name in ("one", "two", "three"):
        pool.node(name)
    for job in (pool.job("a"), pool.job("b")):
        assert pool.lodge(job).node == pool.lodge(job, pinned=True).node


def test_jobs_of_a_node_that_is_gone_are_told_and_get_another(pool: Pool) -> None:
    pool.node("one")
    pool.node("two")
    jobs = [pool.job("a"), pool.job("b")]
    at = {job.id: pool.lodge(job).node for job in jobs}
    assert sorted(at.values()) == ["one", "two"], "each alone, while it is measured"

    pool.site.lose(at["a"], "its machine has been silent for 50 s")

    (told,) = pool.told("a")
    assert isinstance(told, protocol.Evicted)
    assert "silent for 50 s" in told.reason
    assert pool.told("b") == []
    assert pool.agents.forgotten == [at["a"]]
    assert pool.lodge(jobs[0], 2).node == at["b"]


@pytest.mark.parametrize("event", [m.Report(1, status=-9), Gone("was lost")])
def test_a_job_is_told_of_the_end_of_a_tenant_and_another_of_the_same_name_goes_where_it_was(
    pool: Pool, event: Any
) -> None:
    pool.node("one")
    pool.node("two")
    job = pool.job("a")
    node = pool.lodge(job).node

    assert not pool.site.take(99, event)
    assert pool.site.take(1, event)

    (told,) = pool.told("a")
    assert isinstance(told, protocol.Evicted)
    assert not pool.site.tenants
    assert pool.lodge(job, 2).node == node


def test_a_job_pays_for_what_its_tenants_use_at_the_price_of_their_nodes_and_the_rest_is_shown(
    pool: Pool,
) -> None:
    pool.node("one", price=7.2)  # 0.001 a second of one of its two processors
    job = pool.job("a")
    pool.lodge(job)
    for cpu_s in (3.0, 10.0):
        pool.site.take(1, m.Report(1, cpu_s=cpu_s, memory_bytes=5))

    assert pool.site.bill(job) == protocol.Bill(10.0, pytest.approx(0.01))
    (node,) = pool.site.node_loads()
    assert node.idle_usd == pytest.approx(7.2 - 0.01, abs=0.01)

    pool.site.left(job, "a-aggregator-1-1")
    pool.lodge(job, 2)
    pool.site.take(2, m.Report(2, cpu_s=1.0))
    assert pool.site.bill(job) == protocol.Bill(11.0, pytest.approx(0.011))
    (use,) = pool.site.job_uses()
    assert use.usd == pytest.approx(0.011)


def test_a_machine_that_does_not_answer_takes_no_tenant(pool: Pool) -> None:
    pool.node("one")
    pool.agents.answers = False

    assert "one does not answer" in pool.lodge(pool.job("a")).error


def test_a_machine_that_will_be_taken_is_drained(pool: Pool) -> None:
    pool.node("one")
    pool.lodge(pool.job("a"))
    pool.site.must_leave("one", "the cloud takes its VM back")
    assert pool.told("a") == [], "there is no other place"

    pool.node("two")
    pool.site.must_leave("one", "the cloud takes its VM back")

    (told,) = pool.told("a")
    assert isinstance(told, protocol.Vacate)


def test_the_join_file_of_a_machine_has_a_key_of_its_own() -> None:
    machines = Machines.open(Listen("127.0.0.1"))
    try:
        tickets = [
            msgspec.json.decode(machines.ticket(ExpectedNode(name, "aws/us-east-1", 0.0, 8)))
            for name in ("one", "two")
        ]
        assert machines.expected == ("one", "two")
        with pytest.raises(ValueError, match="has a node one"):
            machines.ticket(ExpectedNode("one", "local", 0.0, 8))
    finally:
        machines.close()

    assert len({ticket["secret"] for ticket in tickets}) == 2
    assert {ticket["provider"] for ticket in tickets} == {"aws"}, "it gets the notices of that cloud"


@pytest.mark.parametrize("text", ["", ":7000", "192.0.2.1:", "192.0.2.1:x", "192.0.2.1:70000"])
def test_what_is_no_address_to_listen_at_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no address"):
        listen_at(text)

    assert listen_at("192.0.2.1:7000") == Listen("192.0.2.1", 7000)
    assert listen_at("192.0.2.1") == Listen("192.0.2.1", 0)


def test_when_a_job_has_ended_its_tenants_end_and_nobody_elses(pool: Pool) -> None:
    pool.node("one", tenants_max=4)
    one, other = pool.job("a"), pool.job("b")
    for job in (one, other):
        pool.lodge(job)
        pool.lodge(job, pinned=True)

    pool.site.leave(one)

    assert sorted(pool.agents.killed) == [1, 2]
    assert {tenant.job for tenant in pool.site.tenants} == {other}
    assert pool.site.plan.tenants.keys() == {other.key}
