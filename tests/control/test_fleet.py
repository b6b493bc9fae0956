"""A job's VMs, from the first process that waits for one to the last that is seen gone.

The cloud is scripted, its VMs are agents: processes of this machine that join as user data tells them.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from fake import FakeProvider, Fault
from forked_agents import fork_agent
from identity_documents import Signer, identity_document
from nested import built
from waiting import eventually

from scavenger import errors
from scavenger.cloud.aws.identity import AwsIdentity
from scavenger.cloud.catalog.snapshot import read_snapshot
from scavenger.cloud.identity import IdentityVerifier
from scavenger.control.provisioning import fleet as module
from scavenger.control.provisioning.fleet import Fleet
from scavenger.control.provisioning.fleet_keeping import Keeper
from scavenger.domain.configuration import Offer
from scavenger.domain.intent import FleetSpec, PlacementOption
from scavenger.domain.vm import VmPackage, VmRequest, VmSeen
from scavenger.policy.provisioning import slots
from scavenger.policy.provisioning.config import Backoff, LookLimits, ProvisioningConfig, RetryWaits
from scavenger.policy.provisioning.fleet_plan import FleetInputs
from scavenger.policy.provisioning.slots import AGGREGATORS, aggregator_slot
from scavenger.store import Store
from scavenger.train.engines.base import Engine
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.transport.messages.values import ProcessConfiguration

pytestmark = pytest.mark.slow

WORK = [
    sys.executable,
    "-c",
    "import signal, sys, time; signal.signal(signal.SIGUSR2, lambda *_: sys.exit()); print('up', flush=True); "
    "time.sleep(600)",
]
OFFER = Offer("fake", "fake-1", "small", 0.36, "test", cpus=2, memory_bytes=2**32)
QUICK = Backoff(0.1, 0.2)
CONFIG = ProvisioningConfig(
    0.3,
    look=LookLimits(interval_s=0.1, list_interval_s=0.2, vm_interval_s=0.2, call_s=2.0),
    waits=RetryWaits(*[QUICK] * 6),
)


@dataclass(slots=True)
class AgentCloud(FakeProvider):
    """Its VMs are agents, unless they are `broken` and end before they join.

    Attributes:
        identify: Gives each the proof of its identity, by the VM's id.
    """

    folder: Path = Path()
    broken: str = ""
    identify: Callable[[str], str] = lambda instance_id: ""
    agents: dict[str, ForkServerProcess] = field(default_factory=dict)
    tickets: dict[str, dict[str, str]] = field(default_factory=dict)

    def launch(self, request: VmRequest) -> VmSeen:
        seen = FakeProvider.launch(self, request)
        if self.broken:
            self._end(seen.instance_id, self.broken)
            return seen
        if request.tags.token not in self.agents:
            found = re.search(r"^\{.*\}$", request.template.user_data, re.MULTILINE)
            assert found is not None
            ticket = self.tickets[request.tags.token] = json.loads(found[0])
            path = self.folder / f"{request.tags.token}.json"
            path.write_text(json.dumps({**ticket, "renew": "true", "poweroff": "true"}))
            (self.folder / request.tags.token).mkdir()
            self.agents[request.tags.token] = fork_agent(
                path,
                self.folder / request.tags.token,
                address=f"127.0.1.{len(self.agents) + 1}",
                identity=self.identify(seen.instance_id),
            )
        return seen

    def terminate(self, instance_id: str, zone: str) -> None:
        FakeProvider.terminate(self, instance_id, zone)
        self.kill(self.describe(instance_id, zone).tags.token)

    def kill(self, token: str) -> None:
        if token in self.agents:
            self.agents[token].kill()
            self.agents[token].join()


@dataclass
class Scene:
    """One store and one cloud, for as many jobs as a test has."""

    store: Store
    cloud: AgentCloud
    folder: Path
    notes: list[str] = field(default_factory=list)
    progress: list[str] = field(default_factory=list)
    fleets: list[Fleet] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    servers: list[AgentServer] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    count: int = 0

    def job(self) -> str:
        job = self.store.create_job("job", spec={}, job_file=self.folder / "job.yaml")
        return job.id

    def fleet(
        self,
        job_id: str,
        *,
        budget_usd: float = math.inf,
        before_usd: float = 0.0,
        attempt: int = 1,
        spot: bool = False,
        wait_max_s: float = 3600.0,
        verifier: IdentityVerifier | None = None,
        aggregators_on: tuple[int, ...] = (2,),
        kept: Keeper | None = None,
        package: str = "scavenger-ml",
    ) -> Fleet:
        number, self.count = self.count, self.count + 1
        pool, pool_vms_max = ("", 0) if kept is None else kept.pool
        code = self.folder / f"code-{number}"
        code.mkdir()
        small = tuple(PlacementOption("small", zone, False, 0.36) for zone in self.cloud.places)
        offer = replace(OFFER, spot=True, price_usd_per_hour=0.1) if spot else OFFER
        cheap = tuple(PlacementOption("small", zone, True, 0.1) for zone in self.cloud.places) if spot else ()
        spec = FleetInputs(
            spec=built(
                FleetSpec,
                job_id=job_id,
                provider=self.cloud.name,
                region=self.cloud.region,
                slots=(),
                options=(),
                vms_max=10,
                budget_usd=budget_usd,
                run_max_s=14 * 86_400.0,
                attempt=attempt,
                pool=pool,
                pool_vms_max=pool_vms_max,
            ),
            package=VmPackage(requirement=package),
            options={AGGREGATORS: small, "small": cheap + small},
            offers=(offer,),
            threads={"small": 2},
            aggregators_on=aggregators_on,
            before_usd=before_usd,
            wait_max_s=wait_max_s,
            traffic_price=read_snapshot().extras["aws", "us-east-1"].zones,
        )
        hosts = AgentServer("127.0.0.1", code, verified=verifier is not None)
        hosts.start()
        self.servers.append(hosts)
        self.jobs.append(job_id)
        show = {"note": self.notes.append, "inform": self.progress.append}
        fleet = Fleet(
            self.store, self.cloud, hosts, spec, **show, verifier=verifier, config=CONFIG, kept=kept
        )
        self.fleets.append(fleet)
        self.engines.append(fleet.engine(self.folder / f"logs-{number}", -1, command=WORK))
        return fleet

    def forget(self, fleet: int = -1) -> None:
        """One that has ended, or that is played to be gone."""
        for of_fleets in (self.fleets, self.engines, self.servers, self.jobs):
            del of_fleets[fleet]  # type: ignore[attr-defined]

    def launch(self, *names: str, fleet: int = -1) -> None:
        for name in names:
            role = "aggregator" if name.startswith("aggregator") else "worker"
            self.engines[fleet].launch(
                ProcessConfiguration(role, name, "tcp://nowhere", "", "", "", memory_fd=-1), vm="small"
            )

    def until(self, condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
        def turned() -> bool:
            for fleet, engine in zip(self.fleets, self.engines, strict=True):
                engine.poll()
                fleet.tick()
            return condition()

        assert eventually(turned, within_s=within_s), (self.notes, self.store.intents())

    def placed(self, *names: str, fleet: int = -1) -> None:
        engine = self.engines[fleet]
        self.until(lambda: all(engine.pid(name) for name in names))

    def close(self) -> None:
        for fleet, engine in zip(self.fleets, self.engines, strict=True):
            engine.close()
            fleet.close(limit_s=20.0)

    def alive(self) -> list[str]:
        return [fact.token for fact in self.cloud.truth() if fact.alive]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(module, "LOOK_S", 0.0)  # each tick looks
    cloud = AgentCloud(boot_s=0.0, stop_s=0.0, visibility_s=0.3, folder=tmp_path)
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        scene = Scene(store, cloud, tmp_path)
        try:
            yield scene
        finally:
            for engine in scene.engines:
                engine.kill_all()
            for fleet in scene.fleets:
                cloud.deny(on=False)
                fleet.close(limit_s=20.0)
            for token in cloud.agents:
                cloud.kill(token)


def test_vms_come_with_the_processes_and_go_with_them(scene: Scene) -> None:
    fleet = scene.fleet(scene.job())
    scene.launch("aggregator-0", "aggregator-1", "w0", "w1")
    scene.placed("aggregator-0", "aggregator-1", "w0", "w1")
    # the aggregators share one VM, each worker has its own
    assert len(scene.alive()) == 3
    assert fleet.meter.usd_per_hour() == pytest.approx(3 * 0.36)

    scene.close()
    assert scene.alive() == []
    assert all(intent.state == "GONE" for intent in scene.store.intents())


@pytest.mark.long
def test_of_two_aggregator_vms_each_has_its_share_and_one_that_is_lost_comes_again_in_its_slot(
    scene: Scene,
) -> None:
    fleet, names = (
        scene.fleet(scene.job(), aggregators_on=(2, 1)),
        [f"aggregator-{index}" for index in range(3)],
    )
    (engine,) = scene.engines
    scene.launch(*names, "w0")
    scene.placed(*names, "w0")
    hosts = {name: engine.host(name) for name in names}
    assert sorted(Counter(hosts.values()).values()) == [1, 2]
    assert fleet.meter.shared_usd_per_hour() == pytest.approx(2 * 0.36)

    (lost,) = [one for one in scene.store.intents() if one.slot == aggregator_slot(1)]
    scene.cloud.kill(lost.id)
    scene.cloud.preempt(lost.instance_id)
    scene.until(lambda: len(engine.running) == 3)
    (gone,) = {*names} - {*engine.running}
    scene.launch(gone)
    scene.placed(*names)

    assert engine.host(gone) != hosts.pop(gone)
    assert {name: engine.host(name) for name in hosts} == hosts  # the other VM and its processes stayed
    again = [one.generation for one in scene.store.intents() if one.slot == lost.slot]
    assert sorted(again) == [0, 1]


def test_no_two_vms_join_by_the_same_key_and_no_key_is_kept(scene: Scene) -> None:
    job = scene.job()
    fleet = scene.fleet(job)
    scene.launch("w0", "w1")
    scene.placed("w0", "w1")
    secrets = {ticket["secret"] for ticket in scene.cloud.tickets.values()}
    assert len(secrets) == 2
    assert not any(secret in str(scene.store.intents()) for secret in secrets)

    scene.engines[0].close()
    fleet.close()
    assert scene.store.boot_key(job, "fake", "fake-1") == ""


def test_a_vm_joins_with_its_own_identity_alone_and_one_whose_key_another_has_used_is_replaced(
    scene: Scene,
) -> None:
    signer, asked = Signer.of_tests(), list[str]()

    def signed(instance_id: str) -> str:
        asked.append(instance_id)
        # with the first VM's key, another VM of the same account joins
        holder = "fake-another" if len(asked) == 1 else instance_id
        return identity_document(signer, {"instanceId": holder, "region": scene.cloud.region})

    scene.cloud.identify = signed
    scene.fleet(scene.job(), verifier=AwsIdentity(scene.cloud.region, signer.key.public_key()))
    scene.launch("w0")
    scene.placed("w0")

    (stolen,) = (note for note in scene.notes if "proof of identity" in note)
    assert "is that of VM 'fake-another'" in stolen
    assert len(asked) == 2
    scene.until(lambda: len(scene.alive()) == 1)


def test_a_vm_that_is_lost_takes_its_worker_along_and_another_comes_for_the_next_one(scene: Scene) -> None:
    scene.fleet(scene.job())
    scene.launch("w0")
    scene.placed("w0")
    (token,) = scene.alive()
    (fact,) = scene.cloud.truth()
    scene.cloud.kill(token)
    scene.cloud.preempt(fact.instance_id)
    scene.until(lambda: "w0" not in scene.engines[0].running)
    scene.launch("w1")
    scene.placed("w1")

    assert len(scene.alive()) == 1


def test_a_vm_that_is_avoided_goes_with_its_worker_and_another_comes_for_the_next_one(scene: Scene) -> None:
    scene.fleet(scene.job())
    (engine,) = scene.engines
    scene.launch("w0")
    scene.placed("w0")
    bad = engine.host("w0")
    engine.avoid([bad])
    engine.kill("w0")
    # its agent has told its end, which the engine has not read: it counts for the VM that it had, not for another one
    assert eventually(lambda: not any(vm.processes for vm in scene.servers[0].vms()), within_s=60.0)
    scene.fleets[0].tick()
    scene.until(lambda: "w0" not in engine.running)
    scene.launch("w1")
    scene.placed("w1")

    assert engine.host("w1") != bad
    scene.until(lambda: len(scene.alive()) == 1)
    rented = {one.slot: one.request.template.avoided for one in scene.store.intents()}
    assert rented == {1: (), 2: (bad,)}


def test_workers_train_on_where_the_budget_carries_no_further_vm(scene: Scene) -> None:
    need = 0.36 * CONFIG.reserved_s(60.0) / 3600
    scene.fleet(scene.job(), budget_usd=1.5 * need)
    scene.launch("w0")
    scene.placed("w0")
    scene.launch("w1")
    scene.until(lambda: "w1" not in scene.engines[0].running)

    assert scene.engines[0].running == ("w0",)
    assert len(scene.alive()) == 1
    assert any("does not carry another" in note for note in scene.notes)


def test_a_budget_that_carries_no_vm_at_all_ends_the_job_before_one_is_started(scene: Scene) -> None:
    scene.fleet(scene.job(), budget_usd=0.01)
    scene.launch("w0")
    with pytest.raises(errors.LimitReachedError, match="does not carry another"):
        scene.until(lambda: False)
    assert scene.alive() == []


def test_a_budget_that_is_used_up_ends_the_job_in_order(scene: Scene) -> None:
    need = 0.36 * CONFIG.reserved_s(60.0) / 3600
    # what is left beside the reserve buys some three seconds, whether the worker has begun by then or not
    scene.fleet(scene.job(), budget_usd=need + 0.36 * 3.0 / 3600)
    scene.launch("w0")
    with pytest.raises(errors.LimitReachedError, match="about to be used up"):
        scene.until(lambda: False)
    assert len(scene.alive()) == 1  # there is time to save what was learned


@pytest.mark.parametrize(
    ("deny", "error"),
    [(True, errors.CredentialsError), (False, errors.TransientError)],
)
def test_a_job_that_gets_no_vm_says_why(scene: Scene, deny: bool, error: type[Exception]) -> None:
    scene.cloud.deny(on=deny)
    scene.cloud.types = ("vast",)
    scene.fleet(scene.job())
    scene.launch("w0")
    with pytest.raises(error):
        scene.until(lambda: False)
    assert scene.alive() == []


def test_a_quota_that_answers_the_repeat_of_a_launch_is_named_and_ends_the_job_at_once(scene: Scene) -> None:
    quota = Fault(errors.QuotaError("no more", quota="VCPUS", region="fake-1"))
    scene.cloud.script("launch", Fault(errors.CloudUnavailableError("no answer")), *[quota] * 9)
    scene.fleet(scene.job())
    scene.launch("w0")
    with pytest.raises(errors.QuotaError, match="quota VCPUS in fake-1 is used up"):
        scene.until(lambda: False)
    scene.close()  # waits for what the first request may still have made
    assert sum("got no answer, and may have made VMs" in note for note in scene.notes) == 1
    assert [(one.state, one.ending) for one in scene.store.intents()] == [("GONE", "quota")]


@pytest.mark.long
def test_what_is_sold_out_is_waited_for(scene: Scene) -> None:
    for zone in scene.cloud.places:
        scene.cloud.stock_out(zone)
    scene.fleet(scene.job())
    scene.launch("w0")
    scene.until(lambda: any("sold out" in note for note in scene.notes))
    scene.cloud.stock_out("fake-1b", on=False)
    scene.placed("w0")


def test_one_vm_is_rented_first_where_none_has_joined_and_all_at_once_where_one_has(scene: Scene) -> None:
    scene.fleet(scene.job())
    scene.launch("aggregator-0", "w0", "w1")
    scene.until(lambda: bool(scene.alive()))
    assert len(scene.store.intents()) == 1
    scene.placed("aggregator-0", "w0", "w1")

    assert [one.slot for one in scene.store.intents()] == [0, 1, 2]
    assert any("so the other 2 are rented" in line for line in scene.progress)
    assert all(one.times.joined_at is not None for one in scene.store.intents())


def test_two_vms_that_fail_alike_end_the_job_and_no_third_is_paid_for(scene: Scene) -> None:
    scene.cloud.broken = "Client.VolumeLimitExceeded: Volume limit exceeded"
    scene.fleet(scene.job())
    scene.launch("aggregator-0", "w0", "w1", "w2")
    with pytest.raises(errors.QuotaError, match="total size of disks"):
        scene.until(lambda: False)

    assert len(scene.cloud.truth()) == 2


def test_what_is_sold_out_for_longer_than_the_job_waits_ends_it(scene: Scene) -> None:
    for zone in scene.cloud.places:
        scene.cloud.stock_out(zone)
    scene.fleet(scene.job(), wait_max_s=1.0)
    scene.launch("w0")
    with pytest.raises(errors.TransientError, match="no VM was to be had for 1 s: sold out"):
        scene.until(lambda: False)

    assert any("what may help" in note and "(limits.vms)" in note for note in scene.notes)
    assert scene.alive() == []


def test_a_worker_in_another_zone_for_lack_of_capacity_is_billed_for_its_traffic(scene: Scene) -> None:
    job_id = scene.job()
    fleet = scene.fleet(job_id)
    scene.launch("aggregator-0", "w0")
    scene.placed("aggregator-0", "w0")
    assert {one.request.zone for one in fleet.vms} == {"fake-1a"}
    scene.cloud.stock_out("fake-1a")
    scene.launch("w1")
    scene.placed("w1")

    def trained(step: int) -> None:
        fleet.tick(step, 2.0**30)

    trained(10)
    before_usd = fleet.meter.spent_usd()
    trained(20)
    assert fleet.workers_elsewhere == 1
    assert fleet.meter.spent_usd() - before_usd == pytest.approx(10 * 2 * 0.02, rel=0.01)
    scene.close()
    traffic = scene.store.entry(job_id, "traffic")  # of the 10 steps between its looks
    assert (traffic.quantity, traffic.usd) == (pytest.approx(40.0), pytest.approx(0.8))
    assert traffic.basis.startswith("$0.02 per GiB (AWS price list, out of a zone and in")


def test_one_that_acts_for_the_region_starts_the_vms_of_others_which_join_their_own_leader(
    scene: Scene,
) -> None:
    first, second = scene.job(), scene.job()
    scene.fleet(first)
    scene.launch("w0")
    scene.placed("w0")
    scene.fleet(second)
    scene.launch("w0")
    scene.placed("w0")
    assert len(scene.alive()) == 2
    endpoints = [ticket["endpoint"] for ticket in scene.cloud.tickets.values()]
    assert len(set(endpoints)) == 2

    # the one that acts ends, and the other takes over
    scene.engines[0].close()
    scene.fleets[0].close()
    scene.forget(0)
    assert len(scene.alive()) == 1
    scene.launch("w1")
    scene.placed("w1")
    assert scene.fleets[0]._group.acts


def test_the_next_attempt_ends_what_the_one_before_has_left(scene: Scene) -> None:
    job = scene.job()
    before = scene.fleet(job)
    scene.launch("w0")
    scene.placed("w0")
    # its process dies: no looks any more, nothing is given back
    before._group.stop(20.0)
    before._is_clean = True
    left = scene.alive()
    scene.engines[0].close()
    scene.servers[0].close()
    scene.forget(0)

    scene.store.update_job(job, checkpoint="ck")
    scene.store.finish_job(job, state="failed", report=None, error="killed", exit_code=1)
    scene.store.resume_job(job)
    after = scene.fleet(job, attempt=2)
    scene.launch("w0")
    scene.placed("w0")
    scene.until(lambda: not set(scene.alive()) & set(left))
    assert len(scene.alive()) == 1
    assert after.meter.spent_usd() >= 0.0


def test_a_vm_that_cannot_be_ended_is_told_at_the_end(scene: Scene) -> None:
    fleet = scene.fleet(scene.job())
    scene.launch("w0")
    scene.placed("w0")
    scene.engines[0].close()
    fault = Fault(errors.CloudUnavailableError("no answer"))
    scene.cloud.script("terminate", *[fault] * 100)
    for _ in range(2):  # what failed is no success the second time
        with pytest.raises(errors.CleanupError, match=r"scavenger gc"):
            fleet.close(limit_s=1.0)
    assert len(scene.alive()) == 1
    for token in scene.alive():
        scene.cloud.kill(token)
    for fact in scene.cloud.truth():
        scene.cloud.delete_by_hand(fact.instance_id)


def test_credentials_that_are_refused_at_the_end_are_told_at_once_and_not_waited_for_long(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DENIED_S", 1.0)
    fleet = scene.fleet(scene.job())
    scene.launch("w0")
    scene.placed("w0")
    scene.engines[0].close()
    scene.notes.clear()
    scene.cloud.deny()

    began = time.monotonic()
    with pytest.raises(
        errors.CleanupError, match=r"refuses these credentials: .*within 15 minutes; .*`scavenger gc`"
    ):
        fleet.close()
    assert time.monotonic() - began < 15.0
    assert any(note.startswith("VMs cannot be seen or ended, valid cred") for note in scene.notes)

    scene.cloud.deny(on=False)  # as after a new log-in
    fleet.close(limit_s=20.0)
    assert scene.alive() == []


def test_a_store_that_is_held_at_the_end_is_told_and_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = scene.fleet(scene.job())
    scene.launch("w0")
    scene.placed("w0")
    scene.engines[0].close()

    def held(*_: object) -> None:
        raise errors.StoreBusyError("the store is held")

    with monkeypatch.context() as patch:
        patch.setattr(scene.store, "want_vms", held)
        with pytest.raises(errors.CleanupError, match="end themselves within 15 minutes"):
            fleet.close(limit_s=1.0)
    fleet.close(limit_s=20.0)
    assert scene.alive() == []


def test_of_workers_that_wait_only_those_beyond_the_vms_on_their_way_are_refused(scene: Scene) -> None:
    need = 0.36 * CONFIG.reserved_s(60.0) / 3600
    scene.fleet(scene.job(), budget_usd=3.5 * need)
    scene.launch("w0", "w1", "w2", "w3", "w4")
    scene.until(lambda: len(scene.engines[0].running) == 3)
    scene.placed("w0", "w1", "w2")

    # and again, although it was told before
    scene.launch("w5")
    scene.until(lambda: "w5" not in scene.engines[0].running)
    assert scene.engines[0].running == ("w0", "w1", "w2")
    assert sum("does not carry another" in note for note in scene.notes) == 1


def test_what_becomes_of_one_job_is_nothing_to_another(scene: Scene) -> None:
    need = 0.36 * CONFIG.reserved_s(60.0) / 3600
    scene.fleet(scene.job())
    scene.launch("w0")
    scene.placed("w0")
    # the first one acts for the second, whose budget it must not take for its own
    scene.fleet(scene.job(), budget_usd=need + 0.36 * 3.0 / 3600)
    scene.launch("w0")
    with pytest.raises(errors.LimitReachedError, match="about to be used up"):
        scene.until(lambda: False)
    scene.fleets[0].tick()  # it was not this one
    # that the second one's VM is long in coming may be told: here none ever joins
    assert [note for note in scene.notes if "has not joined" not in note] == []
    assert len(scene.alive()) == 2


def test_a_spot_vm_that_cannot_be_had_is_followed_by_one_on_demand_and_that_is_said(scene: Scene) -> None:
    scene.fleet(scene.job(), spot=True)
    scene.cloud.script("launch", Fault(errors.QuotaError("no more spot", quota="SPOT", region="fake-1")))
    scene.launch("w0")
    scene.placed("w0")

    scene.until(lambda: any("on demand at $0.36 per hour instead of $0.1" in note for note in scene.notes))


@pytest.mark.long
def test_what_a_job_has_cost_never_shrinks_and_counts_no_attempt_twice(scene: Scene) -> None:
    fleet = scene.fleet(scene.job(), before_usd=0.0)
    scene.launch("w0")
    scene.placed("w0")
    seen: list[float] = []

    def look() -> bool:
        seen.append(fleet.meter.spent_usd())
        return len(seen) > 40

    scene.until(look)
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


@pytest.mark.long
def test_the_last_vm_of_a_type_goes_with_its_last_worker(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "IDLE_S", 0.2)
    scene.fleet(scene.job())
    scene.launch("aggregator-0", "w0")
    scene.placed("aggregator-0", "w0")
    scene.engines[0].stop(["w0"], grace_s=0.2)
    scene.until(lambda: len(scene.alive()) == 1)
    scene.until(lambda: [one.state for one in scene.store.intents()].count("GONE") == 1)

    assert scene.engines[0].running == ("aggregator-0",)


def test_the_vm_of_a_released_worker_goes_at_once_and_that_of_a_crashed_one_is_kept_for_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "IDLE_S", math.inf)
    scene.fleet(scene.job())
    scene.launch("aggregator-0", "w0", "w1")
    scene.placed("aggregator-0", "w0", "w1")
    engine = scene.engines[0]
    order = [vm.address for vm in scene.servers[0].vms()]
    released, crashed = sorted(("w0", "w1"), key=lambda name: order.index(engine.host(name)))
    host = engine.host(crashed)
    engine.kill(crashed)
    scene.until(lambda: "up" in engine.log(released).read_text())
    os.kill(engine.pid(released), signal.SIGUSR2)
    scene.until(lambda: engine.running == ("aggregator-0",))

    scene.launch("w2")  # while the VM that goes is the first of two with room
    scene.placed("w2")
    assert engine.host("w2") == host
    scene.until(lambda: [one.state for one in scene.store.intents()].count("GONE") == 1)
    assert len(scene.store.intents()) == 3
