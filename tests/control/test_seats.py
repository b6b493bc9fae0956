"""The machines of leaders, each before a cloud in memory; what all of them promise is in `seat_conformance`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake import FakeProvider
from seat_conformance import TEMPLATE, SeatConformance, SeatWorld

from scavenger.control import sweep
from scavenger.control.leading.caller import CALLER_VARIABLE
from scavenger.control.leading.pod_seat import PodSeat, pod_name
from scavenger.control.leading.starting import first_answer
from scavenger.control.leading.vm_seat import LeaderVmSpec, VmSeat
from scavenger.domain.intent import PlacementOption
from scavenger.domain.vm import VmRequest, VmSeen
from scavenger.errors import GoneError, TransientError
from scavenger.policy.provisioning.config import LookLimits, ProvisioningConfig
from scavenger.policy.provisioning.slots import LEADER_SLOT, is_for_aggregators

pytestmark = pytest.mark.slow

# VMs


class AdmittingCloud(FakeProvider):
    """A cloud that keeps what it was told of launches and logins."""

    def __init__(self) -> None:
        super().__init__(name="aws", region="us-east-1")
        self.requests: list[VmRequest] = []
        self.let: list[tuple[str, ...]] = []

    def launch(self, request: VmRequest) -> VmSeen:
        self.requests.append(request)
        return super().launch(request)

    def let_in(self, request: VmRequest) -> None:
        self.let.append(request.template.settings.logins_from)


class VmWorld(SeatWorld):
    """A leader's VM."""

    cloud: AdmittingCloud

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, AdmittingCloud())

    def seat(self, **options: Any) -> VmSeat:
        return VmSeat(
            self.leaders,
            self.record,
            inform=self.said.append,
            environment={CALLER_VARIABLE: "198.51.100.1/32"},
            provider=self.cloud,
            config=ProvisioningConfig(self.cloud.visibility_s, look=LookLimits(interval_s=0.05)),
            sleep=self.cloud.advance,
            **options,
        )

    def spec(self, wait_max_s: float = 60.0) -> LeaderVmSpec:
        options = (PlacementOption("small", zone, False, 0.1) for zone in self.cloud.zones("small"))
        return LeaderVmSpec(tuple(options), TEMPLATE, "#!/bin/sh\nsecret", wait_max_s)

    def rent(self) -> str:
        intent, _ = self.seat().rent(self.spec(), lambda seen: True)
        return intent.instance_id


@pytest.fixture
def vms(tmp_path: Path) -> Iterator[VmWorld]:
    world = VmWorld(tmp_path)
    yield world
    world.books.close()


class TestVmSeat(SeatConformance):
    @pytest.fixture
    def world(self, vms: VmWorld) -> VmWorld:
        return vms


def test_a_leaders_vm_is_on_record_before_it_is_launched_and_its_secret_is_not(vms: VmWorld) -> None:
    vms.begins()

    intent, seen = vms.seat().rent(vms.spec(), lambda one: True)

    (request,) = vms.cloud.requests
    assert request.tags.token == intent.id
    assert request.tags.slot == LEADER_SLOT
    assert not is_for_aggregators(LEADER_SLOT)
    assert request.template.user_data == "#!/bin/sh\nsecret"
    assert intent.request.template.user_data == ""
    assert seen.state == "running"
    vms.seat().let_in()
    assert vms.cloud.let == [("198.51.100.1/32",)]
    found = vms.seat().living()
    assert found is not None
    assert found.acks == 1

    assert vms.seat().end() == ()
    with vms.seat().open_store() as store:
        assert {one.state for one in store.intents()} == {"GONE"}


def test_a_vm_that_never_lets_its_command_in_is_replaced_and_the_wait_has_an_end(vms: VmWorld) -> None:
    vms.begins()
    clock = iter(range(10_000))

    with pytest.raises(TransientError, match="no leader's VM"):
        vms.seat(clock=lambda: float(next(clock))).rent(vms.spec(wait_max_s=20.0), lambda one: False)

    assert vms.seat().end() == ()
    assert vms.alive() == []


def test_where_a_leaders_vm_was_is_looked_at_and_cleaned_up_though_no_vm_is_left(
    vms: VmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = list[str]()
    monkeypatch.setattr(sweep.providers, "open_provider", lambda *_: vms.cloud)
    monkeypatch.setattr(vms.cloud, "remove_leftovers", lambda owner: removed.append(owner) or ())

    found = sweep.find_leftovers(vms.books)
    assert sweep.end_leftovers(vms.books, (), ()) == ()

    assert (found.regions, found.checked, found.leftovers) == (("aws/us-east-1",), ("aws/us-east-1",), ())
    assert removed == [vms.owner]


# Pods


class FakeCluster(FakeProvider):
    """A cluster in memory: pods of workers are its machines, a leader's is one of its own that a secret owns."""

    def __init__(self) -> None:
        super().__init__(name="kubernetes", region="tests")
        self.secrets: dict[str, Mapping[str, str]] = {}
        self.pods: dict[str, str] = {}
        """Names of leaders' pods, with their ids among the machines."""

    def keep_secret(self, name: str, files: Mapping[str, str], *, owner: str) -> str:
        self._enter("launch", name)
        self.secrets.setdefault(name, files)
        return f"uid of {name}"

    def keep_pod(self, body: Mapping[str, Any]) -> None:
        self._enter("launch", body["metadata"]["name"])
        seen = VmSeen("", "small", self.places[0], False, "pending")
        self.pods[body["metadata"]["name"]] = self._add(seen, None).seen.instance_id

    def describe(self, instance_id: str, zone: str) -> VmSeen:
        if not instance_id.startswith("scavenger-leader-"):
            return super().describe(instance_id, zone)
        if instance_id not in self.pods:
            self._enter("describe", instance_id)
            raise GoneError(f"the pod {instance_id} is gone")
        return replace(super().describe(self.pods[instance_id], zone), instance_id=instance_id)

    def phase_of(self, name: str) -> tuple[str, str]:
        state = self.describe(name, "").state
        if state in ("stopping", "gone"):
            raise GoneError(f"the pod {name} is gone")
        return state.capitalize(), ""

    def end_pod(self, name: str) -> None:
        if name in self.pods:
            self.terminate(self.pods[name], "")

    def drop_secret(self, name: str) -> None:
        self._enter("terminate", name)
        self.secrets.pop(name, None)


class PodWorld(SeatWorld):
    """A leader's pod."""

    provider, region, namespace = "kubernetes", "tests", "jobs"
    cloud: FakeCluster

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FakeCluster())

    def seat(self) -> PodSeat:
        return PodSeat(
            self.leaders,
            self.record,
            inform=self.said.append,
            provider=self.cloud,
            clock=lambda: self.cloud.now_s,
            sleep=self.cloud.advance,
        )

    def rent(self) -> str:
        name = pod_name(self.record)
        self.cloud.keep_secret(name, {}, owner=self.owner)
        self.cloud.keep_pod({"metadata": {"name": name}})
        self.cloud.advance(60.0)
        return name

    def alive(self) -> list[str]:
        names = {machine: name for name, machine in self.cloud.pods.items()}
        return [names.get(one, one) for one in super().alive()]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[PodWorld]:
    world = PodWorld(tmp_path)
    yield world
    world.books.close()


class TestPodSeat(SeatConformance):
    @pytest.fixture
    def world(self, pods: PodWorld, monkeypatch: pytest.MonkeyPatch) -> PodWorld:
        end = pods.cloud.delete_by_hand
        monkeypatch.setattr(pods.cloud, "delete_by_hand", lambda name: end(pods.cloud.pods.get(name, name)))
        return pods


def test_a_pods_secret_ends_with_it_and_a_folder_on_a_claim_is_kept(pods: PodWorld) -> None:
    pods.change(claim="leaders")
    pods.rent()
    assert list(pods.cloud.secrets) == [pod_name(pods.record)]

    assert pods.seat().end() == ()

    assert pods.cloud.secrets == {}
    with pytest.raises(GoneError, match="its folder is kept on the claim leaders"):
        pods.seat().let_in()


def test_a_pod_that_is_being_ended_leads_until_it_is_gone(pods: PodWorld) -> None:
    """It may be writing the job's last checkpoint."""
    pods.rent()
    pods.cloud.end_pod(pod_name(pods.record))

    assert pods.seat().leftovers() is None

    pods.cloud.advance(60.0)
    assert pods.seat().leftovers() == ()


@pytest.mark.parametrize(
    ("ends", "told"), [(True, "ended before it served"), (False, "does not serve after 5 min")]
)
def test_a_leader_that_never_serves_is_waited_for_no_longer_than_its_pod_or_its_limit_lasts(
    pods: PodWorld, monkeypatch: pytest.MonkeyPatch, ends: bool, told: str
) -> None:
    seat, begun = pods.seat(), list[float]()

    def ask(client: object) -> dict[str, Any]:
        if ends and pods.cloud.now_s > begun[0] + 20.0:
            pods.cloud.end_pod(pod_name(pods.record))
        raise TransientError("connection refused")

    monkeypatch.setattr(seat, "api", lambda: nullcontext())
    with pytest.raises(TransientError, match=rf"the leader's pod {told}: connection refused"):
        first_answer(seat, lambda token: begun.append(pods.cloud.now_s) if pods.rent() else None, ask)

    assert pods.cloud.now_s - begun[0] <= (120.0 if ends else 310.0)
