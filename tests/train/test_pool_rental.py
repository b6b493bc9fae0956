"""Nodes that a pool rents, with a source that only notes what it is asked for: when there are how many."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import cast

import pytest
from scripted_machines import Pool, scripted_pool

from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.pool import protocol
from scavenger.train.pool.growth import CRAMPED_S, RentalLimits
from scavenger.train.pool.machines import Machines
from scavenger.train.pool.placement import Node
from scavenger.train.pool.rental import AGE_MAX_S, RentedMachine, RentedNodes

WALL = 1_800_000_000.0
IDLE_S = 60.0


class Source:
    """What a rental asks for, and the machines that come of it."""

    def __init__(self, nodes_max: int) -> None:
        self.offered = Node("", (0, 1), 1 << 30, 1, "local", "c5.large", 7.2)
        self.limits = RentalLimits(nodes_max, IDLE_S)
        self.package, self.verified = b"", False
        self.wanted: tuple[int, ...] = ()
        self.machines: dict[int, RentedMachine] = {}
        self.spent_usd, self.shortage = 1.0, ""
        self.now = 0.0

    def open(self, server: AgentServer) -> None:
        """It has no clouds to ask."""

    def look(self) -> tuple[RentedMachine, ...]:
        return tuple(self.machines.values())

    def want(self, numbers: Collection[int]) -> None:
        self.wanted = tuple(sorted(numbers))
        for number in self.wanted:
            self.machines.setdefault(number, RentedMachine(number, f"intent-{number}", WALL + self.now))

    def close(self) -> None:
        self.want(())


class Scene:
    """A pool that rents, and its clock."""

    def __init__(self, pool: Pool, nodes_max: int) -> None:
        self.pool, self.source, self.now = pool, Source(nodes_max), 0.0
        self.rental = RentedNodes(self.source, cast(Machines, pool.agents))

    def look(self, after_s: float = 1.0) -> tuple[int, ...]:
        self.now += after_s
        self.source.now = self.now
        self.rental.look(self.pool.site, self.now, WALL + self.now)
        return self.source.wanted

    def join(self, number: int) -> None:
        """The machine of a node that was asked for joins."""
        name = f"rented-{number}"
        assert self.pool.agents.expected[name].startswith(f"intent-{number}")
        self.pool.node(name, price=7.2, tenants_max=1)

    def waits(self, name: str) -> None:
        """A job asks for a tenant in vain, as it does every 5 s."""
        job = next((one for one in self.pool.site.jobs if one.id == name), None) or self.pool.job(name)
        assert self.pool.lodge(job).error
        self.pool.site._waiting[job.key, "aggregator-1"] = self.now, False


@pytest.fixture
def scene() -> Iterator[Scene]:
    with scripted_pool() as pool:
        yield Scene(pool, 2)


def test_a_node_is_rented_for_a_job_that_waits_and_given_back_when_it_has_gone(scene: Scene) -> None:
    assert scene.look() == ()
    scene.waits("a")
    assert scene.look() == (1,)
    assert scene.look() == (1,), "one that is on its way is enough"
    assert "another node is on its way" in scene.pool.lodge(scene.pool.site.jobs[0]).error
    scene.join(1)
    (job,) = scene.pool.site.jobs
    assert scene.pool.lodge(job).node == "rented-1"
    assert scene.look(10 * IDLE_S) == (1,)

    scene.pool.site.leave(job)

    scene.look()
    assert scene.look(IDLE_S - 1.0) == (1,)
    assert scene.look() == ()
    assert "rented-1" not in scene.pool.site.plan.nodes
    assert scene.pool.agents.forgotten == ["rented-1"]
    scene.look()
    assert scene.pool.agents.expected == {}


def test_names_are_never_used_twice_and_there_are_no_more_nodes_than_may_be(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        scene.waits(name)
    assert scene.look() == (1, 2)
    load = scene.rental.load(scene.pool.site)
    assert (load.free, set(load.since)) == (2, set())
    scene.look()
    for number in (1, 2):
        scene.join(number)
    for job in scene.pool.site.jobs[:2]:
        scene.pool.lodge(job)
    scene.waits("c")
    assert scene.look() == (1, 2)
    load = scene.rental.load(scene.pool.site)
    assert (load.free, set(load.since)) == (0, {"rented-1", "rented-2"})

    scene.pool.site.leave(scene.pool.site.jobs[0])
    scene.pool.site.drain(protocol.DrainRequest("rented-1"))
    scene.waits("c")
    assert scene.look() == (2, 3)


def test_a_node_whose_machine_is_lost_is_rented_again_only_if_somebody_waits(scene: Scene) -> None:
    scene.waits("a")
    scene.look()
    scene.look()
    scene.join(1)
    scene.source.machines[1] = RentedMachine(1, "intent-1", WALL, "it died")

    assert scene.look(30.0) == ()

    assert scene.pool.agents.forgotten == ["rented-1"]
    scene.waits("a")
    assert scene.look() == (2,)


def test_a_node_whose_agent_fell_silent_is_given_up(scene: Scene) -> None:
    scene.waits("a")
    scene.look()
    scene.look()
    scene.join(1)
    scene.look()

    scene.pool.site.lose("rented-1", "its machine has been silent for 50 s")

    assert scene.look(30.0) == ()


def test_a_launch_that_failed_is_repeated_under_the_same_name(scene: Scene) -> None:
    scene.waits("a")
    scene.look()
    scene.look()
    scene.source.machines[1] = RentedMachine(1, "intent-1", WALL, "no capacity")
    scene.waits("a")
    assert scene.look() == (1,)
    scene.source.machines[1] = RentedMachine(1, "intent-1-again", WALL)
    scene.look()

    assert scene.pool.agents.expected == {"rented-1": "intent-1-again"}


def test_a_node_on_its_way_that_nobody_waits_for_any_more_ends(scene: Scene) -> None:
    scene.waits("a")
    scene.look()
    scene.pool.site.leave(scene.pool.site.jobs[0])

    scene.look()
    assert scene.look(IDLE_S) == ()


def test_a_node_that_has_run_for_too_long_is_replaced_while_its_job_trains(scene: Scene) -> None:
    scene.waits("a")
    scene.look()
    scene.look()
    scene.join(1)
    (job,) = scene.pool.site.jobs
    scene.pool.lodge(job)
    assert scene.look() == (1,)

    assert scene.look(AGE_MAX_S) == (1, 2)
    scene.look()
    scene.join(2)
    scene.look()

    (asked,) = scene.pool.told("a")
    assert isinstance(asked, protocol.Vacate)
    scene.pool.site.left(job, asked.intent)
    assert scene.pool.lodge(job, 2).node == "rented-2"
    assert scene.look() == (2,), "empty and drained"


def test_a_node_with_nothing_but_what_sequences_ends_once_that_has_moved(scene: Scene) -> None:
    site = scene.pool.site
    scene.waits("a")
    scene.look()
    scene.look()
    scene.join(1)
    (a,) = site.jobs
    scene.pool.lodge(a)
    b = scene.pool.job("b")
    scene.look()
    site.may_grow = False
    assert scene.pool.lodge(b, pinned=True, movable=True).node == "rented-1"
    scene.waits("b")
    scene.look()
    scene.look()
    scene.join(2)
    assert scene.pool.lodge(b).node == "rented-2"
    site.leave(a)
    scene.look()
    assert scene.look(IDLE_S) == (1, 2)
    site.ask_again(scene.now)

    (asked,) = (one for one in scene.pool.told("b") if isinstance(one, protocol.Vacate))
    site.left(b, asked.intent)

    assert scene.pool.lodge(b, 2, pinned=True, movable=True).node == "rented-2"
    assert scene.look() == (2,)


def test_the_price_of_nodes_is_divided_into_what_jobs_used_and_the_rest(scene: Scene) -> None:
    from scavenger.train.engines.vm import messages as m

    scene.waits("a")
    scene.look()
    scene.look()
    scene.join(1)
    scene.pool.lodge(scene.pool.site.jobs[0])
    scene.pool.site.take(1, m.Report(1, cpu_s=100.0))  # of one of two processors at 7.2 dollars an hour

    load = scene.rental.load(scene.pool.site)
    assert load.idle_usd == pytest.approx(1.0 - 0.1)
    scene.pool.site.lose("rented-1", "given back")
    assert scene.rental.load(scene.pool.site).idle_usd == pytest.approx(1.0 - 0.1)


def test_a_job_with_too_little_room_gets_a_node_after_a_while(scene: Scene) -> None:
    site = scene.pool.site
    scene.pool.node("one")
    a, b = scene.pool.job("a"), scene.pool.job("b")
    for job in (a, b):
        assert scene.pool.lodge(job).node == "one"
        site.adopt(site.plan.measured(job.key, 0.1, {"aggregator-1": 0.1}))
    assert scene.look() == ()

    scene.look(CRAMPED_S - 2.0)
    assert scene.source.wanted == ()
    assert scene.look(3.0) == (1,)
