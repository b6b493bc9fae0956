"""Pools of hosts: what is a slot, what their settings may say, and nodes that are drained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from scavenger_cli.commands.pool import pool_text
from ssh_lab import SshLab, lab_of, needs_ssh

from scavenger.api.calls import Local
from scavenger.api.pools import drain_pool_node, shared_nodes, show_pools
from scavenger.api.pools import shared as shared_pool
from scavenger.cloud.ssh.provider import SshProvider
from scavenger.control.jobs.pool_seat import PoolSeat
from scavenger.control.places.vms import RentedVms
from scavenger.control.pools.hosts import PoolHosts, seen_node
from scavenger.control.pools.nodes import with_drained
from scavenger.control.pools.rented import MeansKnown
from scavenger.control.pools.standing import PoolStanding
from scavenger.control.provisioning.kept_by_pool import KeptByPool
from scavenger.control.service.server import configured_pools
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import JobSpec, ResourcesSpec
from scavenger.domain.pool import (
    JobStanding,
    Pool,
    PoolAllotment,
    PoolNode,
    PoolShare,
    PoolVms,
    RatePoint,
    WorkLeft,
)
from scavenger.domain.vm import OwnedMachine
from scavenger.errors import ConfigurationError, NotFoundError, NotSupportedError
from scavenger.scheduler.jobs.seeing import Means, PoolJob, Sizes
from scavenger.scheduler.jobs.stepping import PoolStep, step_of, why_waiting
from scavenger.server.dashboard.pool_routes import pool_card
from scavenger.store import Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)
LAB = Pool("lab", 3, "even", vms=PoolVms("ssh/lab", "", False, 0.0))
HOST = {"cpus": 2, "memory": 4.0, "gpus": 0, "usd_per_hour": 0.0}
SSH = """\
[ssh.hosts.h0]
usd_per_hour = 0
[ssh.hosts.h1]
usd_per_hour = 0.25
rack = "rack1"
[pool.lab]
infra = "ssh/lab"
"""


def node(name: str, state: str = "open", type_: str = "small", cpus: int = 2, *, gpus: int = 1) -> PoolNode:
    return PoolNode(name, type_, 1, cpus, 0.0, state, NOW, per_slot=gpus)  # type: ignore[arg-type]


def lab_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Pool:
    path = tmp_path / "config.toml"
    path.write_text(text)
    monkeypatch.setenv("SCAVENGER_CONFIG", str(path))
    return configured_pools()["lab"]


def test_each_host_of_a_group_or_rack_is_a_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lab_settings(tmp_path, monkeypatch, SSH)
    rack = lab_settings(tmp_path, monkeypatch, SSH.replace("ssh/lab", "ssh/lab-rack1") + "hour = 2\n")

    assert (whole.slots, rack.slots) == (2, 1)
    assert whole.vms is not None
    assert rack.vms is not None
    assert (whole.vms.owned, whole.vms.usd_per_hour, rack.vms.job_usd_per_hour) == (True, 0.25, 2.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SSH + 'vm = "2cpu-4gib"\n', "max must be given, for VMs of ssh/lab"),
        (
            SSH + 'vm = "2cpu-4gib"\nmax = 2\n',
            "pool.lab: vm is for VMs that are rented; the hosts of ssh/lab are",
        ),
        (SSH + "spot = true\n", "pool.lab: spot: ssh/lab has no spot VMs; leave it out"),
        (SSH.replace("ssh/lab", "ssh/attic"), "pool.lab: ssh/attic: the settings have no host of that group"),
        (SSH.replace("ssh/lab", "ssh/lab-rack9"), "pool.lab: ssh/lab has no host in the zone lab-rack9"),
        (
            SSH.replace("ssh/lab", "aws/us-east-1"),
            "pool.lab: vm and max must be given, for VMs of aws/us-east-1",
        ),
    ],
)
def test_what_no_hosts_can_be_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        lab_settings(tmp_path, monkeypatch, text)

    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@needs_ssh
@pytest.mark.slow
def test_hosts_are_free_taken_or_lost(tmp_path: Path) -> None:
    clock = [0.0]
    lab: SshLab
    with (
        lab_of(tmp_path / "lab", {"h0": HOST, "h1": HOST, "h2": {**HOST, "gpus": 4}}) as lab,
        Store.open(f"sqlite:///{tmp_path}/store.db") as store,
    ):
        provider = SshProvider("lab", lab.settings, clock=lambda: clock[0])
        changes: list[object] = []
        hosts = PoolHosts(store, LAB, open_machines=lambda: provider, changed=lambda: changes.append(1))

        def seen() -> str:
            hosts.look(NOW)
            return " ".join(one.state for one in hosts.nodes or ())

        assert seen() == "open open open"
        assert [one.per_slot for one in hosts.nodes or ()] == [1, 1, 4]
        assert lab.hold("h1")
        assert seen() == "open taken open"
        lab.stop("h2")
        assert seen() == "open taken open"  # it may be back in a moment
        clock[0] = 61.0
        assert seen() == seen() == "open taken lost"
        lab.release("h1")
        assert seen() == "open open lost"
    assert len(changes) == 4


def machine(
    *, held: bool = False, instance_id: str = "", reached: bool = True, lost: bool = False
) -> OwnedMachine:
    return OwnedMachine("h0", "small", 2, 0, 0.0, reached, lost, held, instance_id)


def test_a_host_with_a_vm_of_the_pool_is_its_own() -> None:
    def state(one: OwnedMachine, *ours: str, before: PoolNode | None = None) -> str:
        return seen_node(one, frozenset(ours), before, LATER).state

    assert state(machine(held=True, instance_id="h0.token"), "h0.token") == "open"
    assert (
        state(machine(held=True, instance_id="h0.token"), "token") == "open"
    )  # its launch is not answered yet
    assert state(machine(held=True, instance_id="h0.token"), "h0.other") == "taken"
    assert state(machine(held=True)) == "taken"
    assert state(machine(reached=False)) == "lost"
    assert state(machine(reached=False), before=node("h0", "taken")) == "taken"
    assert seen_node(machine(), frozenset(), node("h0", "draining"), LATER) == node("h0")
    assert seen_node(machine(held=True), frozenset(), node("h0"), LATER).since == LATER


def test_a_node_is_draining_since_it_was_drained() -> None:
    seen = (node("h0"), node("h1", "lost"))
    [first, lost] = with_drained(seen, ("h0", "h1"), (), LATER)

    assert (first.state, first.since, lost.state) == ("draining", LATER, "lost")
    assert with_drained(seen, ("h0",), (replace(first, since=NOW),), LATER)[0].since == NOW
    assert with_drained((first,), (), (first,), LATER) == (replace(node("h0"), since=LATER),)


# ---- who gets which hosts ------------------------------------------------------------------------------------------


def job(
    name: str, told: int = 0, vm: str = "", *, most: int = 3, curves: dict[str, float] | None = None
) -> PoolJob:
    """A job whose rate with one host of each type is given."""
    standing = None
    if curves is not None:
        points = {
            type_: tuple(RatePoint(k, rate * k**0.9, True) for k in (1, 2, 3))
            for type_, rate in curves.items()
        }
        own = vm if vm in points else next(iter(points))
        standing = JobStanding(
            1,
            "training",
            told,
            1,
            left=WorkLeft(1e6),
            curve=points.pop(own),
            vm=own,
            others=points,
            change_s=1.0,
        )
    share = PoolShare(told, told, told, 1, vm=vm) if vm else None
    return PoolJob(name, "ann", 0, int(name), Sizes(1, most, most), 1.0, standing, share, queued=not told)


def step(pool: Pool, jobs: list[PoolJob], *nodes: PoolNode, drained: tuple[str, ...] = ()) -> PoolStep:
    last = PoolAllotment(pool, 1, {one.id: one.share for one in jobs if one.share is not None}, (), NOW)
    means = Means(nodes=with_drained(nodes, drained, (), NOW), drained=drained)
    return step_of(pool, jobs, last, {one.id: one.id for one in jobs}, NOW, means)


def test_shares_are_cut_to_the_hosts_that_live() -> None:
    runs = job("1", 3, "small", curves={"small": 1.0})

    def shrinks(*nodes: PoolNode, drained: tuple[str, ...] = ()) -> list[tuple[str, int]]:
        return [(move.kind, move.slots) for move in step(LAB, [runs], *nodes, drained=drained).moves]

    assert shrinks(node("h0"), node("h1"), node("h2")) == []
    assert shrinks(node("h0"), node("h1", "lost"), node("h2")) == [("shrink", 2)]
    assert shrinks(node("h0"), node("h1", "taken"), node("h2"), drained=("h2",)) == [("shrink", 1)]
    assert shrinks(node("h0", "lost")) == [("pause", 0)]


def test_jobs_leave_this_machine_if_it_is_drained() -> None:
    pool = Pool("gpu", 4, "even")
    trains = replace(job("1", 3, curves={"": 1.0}), share=PoolShare(3, 3, 3, 1))
    searches = replace(trains, standing=JobStanding(1, "searching", 3, 1))
    last = PoolAllotment(pool, 1, {"1": PoolShare(3, 3, 3, 1)}, (), NOW)

    for one in (trains, searches):
        found = step_of(pool, [one], last, {"1": "1"}, NOW, Means(drained=("local",)))
        assert [(move.kind, move.slots) for move in found.moves] == [("pause", 0)]
        assert found.allotment.drained == ("local",)
    waits = job("2", most=1)
    drained = step_of(pool, [waits], last, {}, NOW, Means(drained=("local",)))
    assert "of 4, nobody has any; this machine is drained" in why_waiting(pool, [waits], drained, {})["2"]


def test_aggregators_of_a_job_of_a_pool_are_on_the_type_that_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = "".join(
        f"[ssh.hosts.h{cpus}]\ncpus = {cpus}\nmemory = 32\ngpus = 0\nusd_per_hour = {cpus}\n"
        for cpus in (2, 16)
    )
    (tmp_path / "config.toml").write_text(sizes)
    monkeypatch.setenv("SCAVENGER_CONFIG", str(tmp_path / "config.toml"))
    spec = {"version": 1, "name": "a", "train": "train:job", "infra": "ssh/lab", "goal": {"max_epochs": 1}}
    given = JobSpec.model_validate(
        {**spec, "resources": {"vm": "16cpu-32gib"}, "search": {"workers": [1], "batch_size": [32]}}
    )

    def aggregators(kept: KeptByPool | None) -> str:
        found = RentedVms(given, kept=kept).aggregators
        assert found is not None
        return found.vm

    assert (aggregators(None), aggregators(KeptByPool("lab", 2, "ann"))) == ("2cpu-32gib", "16cpu-32gib")
    place = RentedVms(given, kept=KeptByPool("lab", 2, "ann"))
    assert place.within_quotas() == (place.space, ())  # no host is asked: those that wait for it are in use
    disk = given.model_copy(update={"resources": ResourcesSpec.model_validate({"cpus": 2, "disk": 50})})
    with pytest.raises(
        NotSupportedError, match=r"resources.disk: the disks of hosts of ssh/lab are what they are"
    ):
        RentedVms(disk)


def test_a_job_that_waits_is_told_what_the_hosts_are() -> None:
    pool, waits = replace(LAB, slots=4), job("1", most=1)
    found = step(pool, [waits], node("h0", "lost"), node("h1", "taken"), node("h2"), drained=("h2",))

    assert why_waiting(pool, [waits], found, {})["1"] == (
        "it waits for 1 slot of pool lab: of 4, nobody has any; of its hosts 1 drained, 1 lost, 1 in use by something "
        "else, 1 never seen"
    )
    assert "its hosts have not been seen yet" in why_waiting(pool, [waits], step(pool, [waits]), {})["1"]


def test_a_host_with_several_gpus_is_a_slot_with_as_many_workers(shared: Store) -> None:
    nodes = tuple(node(f"h{at}", gpus=4) for at in range(3))
    curve = tuple(RatePoint(workers, workers**0.9, True) for workers in (4, 8))
    standing = JobStanding(1, "training", 2, 1, left=WorkLeft(1e6), curve=curve, vm="small")
    wide, part = (
        replace(job(name), id=name, sizes=Sizes(*sizes), standing=has, queued=has is None)
        for name, sizes, has in (("1", (3, 10, 10), standing), ("2", (5, 6, 6), None))
    )
    wide = replace(wide, share=PoolShare(2, 2, 2, 1, vm="small"))
    found = step(LAB, [wide, part], *nodes)

    assert [(move.job, move.kind, move.slots) for move in found.moves] == [("1", "shrink", 1)]
    assert found.per_slot == {"1": 4, "2": 4}
    assert found.allotment.per_slot("small") == 4
    text = why_waiting(replace(LAB, slots=1), [part], found, {})["2"]
    assert text == "it needs 2 slots, and pool lab has 1"
    small = replace(wide, share=PoolShare(1, 1, 1, 1, vm="small"), standing=replace(standing, held=1))
    part = replace(part, share=PoolShare(2, 2, 2, 2, vm="small"), queued=False)
    standings = PoolStanding(
        LAB,
        (small, part),
        {one.id: one.id for one in (small, part)},
        found.allotment,
        0.0,
        Means(nodes=nodes),
    )
    at = Local(store=shared)
    pool = shared_pool(at, standings, {}, (), shared_nodes(at, standings))
    assert [(one.slots, one.workers) for one in pool.jobs] == [(1, 4), (2, 6)]
    assert [one.per_slot for one in pool.nodes] == [4, 4, 4]
    assert "idle" not in pool.jobs[0].why
    assert "it may have no more than 6 workers: 2 of its GPUs are idle" in pool.jobs[1].why
    table = Console(width=120, file=StringIO())
    table.print(*pool_text(pool))
    assert re.search(r"state +slots +workers", table.file.getvalue())  # type: ignore[attr-defined]
    assert [line.workers for line in pool_card(pool).jobs] == ["4", "6"]
    assert pool_card(pool).nodes[0].slots == "1 of 4 workers"


def test_a_job_goes_to_the_type_that_is_faster_for_it_and_begins_there() -> None:
    pool = replace(LAB, slots=2, policy="worth")
    nodes = node("h0"), node("h1", type_="large", cpus=8)
    begins = step(pool, [job("1")], *nodes).allotment.shares["1"]
    assert (begins.told, begins.vm) == (1, "large")  # by the processors of both

    slow = job("1", 1, "small", curves={"small": 1.0, "large": 4.0}, most=1)
    found = step(pool, [slow], *nodes)
    assert [(move.kind, move.slots) for move in found.moves] == [("pause", 0)]
    paused = replace(slow, queued=True, share=found.allotment.shares["1"])
    after = step(pool, [paused], *nodes)
    assert [(move.kind, move.slots) for move in after.moves] == [("begin", 1)]
    assert after.allotment.shares["1"].vm == "large"
    stays = job("1", 1, "small", curves={"small": 1.0, "large": 0.5}, most=1)  # as it was there
    assert step(pool, [stays], *nodes).moves == ()


def test_a_job_runs_on_the_type_of_its_share_and_keeps_the_curves_of_others() -> None:
    spec = {"version": 1, "name": "a", "train": "train:job", "infra": "pool/lab", "goal": {"max_epochs": 1}}
    given = JobSpec.model_validate({**spec, "search": {"workers": [1, 2], "batch_size": [32]}})
    curve = (RatePoint(1, 1.0, True),)
    before = JobStanding(1, "training", attained_slot_s=5.0, curve=curve, vm="small")
    seat = PoolSeat("pool lab", PoolShare(2, 2, 2, 1, vm="large"), vms=LAB.vms, before=before)
    there = seat.within(given)

    assert str(there.infra) == "ssh/lab"
    assert (there.resources and there.resources.vm, there.spot) == ("large", "never")
    assert seat.fitted(Configuration("small", 1, 32), there) == Configuration("large", 2, 32)
    now = seat.standing()
    assert (now.vm, now.curve, now.others) == ("large", (), {"small": curve})
    again = PoolSeat("pool lab", PoolShare(1, 1, 1, 2, vm="small"), vms=LAB.vms, before=now).standing()
    assert (again.curve, again.others) == (curve, {})


# ---- nodes that are drained ----------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A pool of two hosts, and one of this machine."""
    monkeypatch.setenv("SCAVENGER_LOCAL_PRICE", "0.5")
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.put_allotment(PoolAllotment(LAB, 1, {}, (), NOW, (node("h0"), node("h1", "lost"))))
        store.put_allotment(PoolAllotment(Pool("gpu", 4), 1, {}, (), NOW))
        yield store


def test_a_node_is_drained_and_opened_again(shared: Store) -> None:
    at = Local(store=shared)

    def states() -> dict[str, dict[str, str]]:
        found = show_pools(at).pools
        return {one.name: {each.name: each.state for each in one.nodes} for one in found}

    assert (drain_pool_node(at, "h0").pool, drain_pool_node(at, "local").pool) == ("lab", "gpu")
    assert states() == {"gpu": {"local": "draining"}, "lab": {"h0": "draining", "h1": "lost"}}
    pools = {one.name: one for one in show_pools(at).pools}
    assert (pools["lab"].free, pools["gpu"].free) == (0, 0)
    text = "\n".join(str(line) for line in pool_text(pools["lab"]))
    assert "Pool lab: 3 hosts of ssh/lab, shared out by even; 0 free" in text
    assert [line.state for line in pool_card(pools["lab"]).nodes] == ["draining", "lost"]

    number = shared.pools()[1].number
    assert drain_pool_node(at, "h0").drained
    assert shared.pools()[1].number == number  # nothing is new
    drain_pool_node(at, "h0", undo=True)
    assert states()["lab"]["h0"] == "open"
    assert MeansKnown(shared, LAB).at(NOW, shared.allotment("lab")).drained == ()


def test_a_node_that_is_not_there_or_not_one_is_refused(shared: Store) -> None:
    at = Local(store=shared)
    with pytest.raises(
        NotFoundError, match="no pool has a node 'h9'; there are local in gpu, h0 in lab, h1 in lab"
    ):
        drain_pool_node(at, "h9")
    with pytest.raises(NotFoundError, match="no pool gpu has a node 'h0'"):
        drain_pool_node(at, "h0", "gpu")
    shared.put_allotment(PoolAllotment(Pool("cpu", 4), 1, {}, (), NOW))
    with pytest.raises(
        ConfigurationError, match="pools cpu and gpu have a node 'local' each: name one, --pool POOL"
    ):
        drain_pool_node(at, "local")
