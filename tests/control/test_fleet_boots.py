"""What a job's user is told of VMs on their way: how far they are, which are late, and why others failed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fake import FakeProvider, Fault
from made_intents import made_intent
from nested import built, changed

from scavenger.control.provisioning.boot_watch import BootWatch
from scavenger.control.provisioning.booting import boot_document
from scavenger.control.provisioning.fleet_boots import FleetBoots, is_proven
from scavenger.domain.configuration import Offer
from scavenger.domain.intent import FleetSpec, Intent, PlacementOption, VmTimes
from scavenger.domain.vm import VmPackage
from scavenger.errors import (
    CloudUnavailableError,
    ConfigurationError,
    CredentialsError,
    QuotaError,
    TransientError,
)
from scavenger.policy.provisioning.fleet_plan import AgentSeen, FleetInputs
from scavenger.policy.provisioning.slots import AGGREGATORS
from scavenger.testing.provider_conformance import token_of

ENDPOINT = "tcp://203.0.113.7:7000"
DOCUMENT = boot_document(ENDPOINT, "k" * 40, "fake", VmPackage(requirement="scavenger-ml"))
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
INPUTS = FleetInputs(
    spec=built(
        FleetSpec,
        job_id="job",
        provider="fake",
        region="fake-1",
        slots=(),
        options=(),
        vms_max=8,
        budget_usd=math.inf,
        run_max_s=1e6,
        user_data=DOCUMENT,
    ),
    package=VmPackage(requirement="scavenger-ml"),
    options=dict.fromkeys(("small", AGGREGATORS), (PlacementOption("small", "fake-1a", False, 0.36),)),
    offers=(Offer("fake", "fake-1", "small", 0.36, "test", cpus=2, memory_bytes=2**32),),
    threads={"small": 2},
)
JOINED = AgentSeen(joined=True)


@dataclass
class Scene:
    """VMs of one job at a scripted cloud, looked at now and then."""

    folder: Path
    history: tuple[Intent, ...] = ()
    cloud: FakeProvider = field(default_factory=FakeProvider)
    now: float = 0.0
    notes: list[str] = field(default_factory=list)
    progress: list[str] = field(default_factory=list)
    intents: dict[str, Intent] = field(default_factory=dict)
    agents: dict[str, AgentSeen] = field(default_factory=dict)
    wanted: int = 3

    def __post_init__(self) -> None:
        self.watch = BootWatch(self.cloud, interval_s=5.0)
        self.boots = FleetBoots(
            INPUTS.spec,
            INPUTS.package,
            self.watch,
            self.history,
            endpoint=ENDPOINT,
            note=self.notes.append,
            inform=self.progress.append,
            folder=self.folder,
        )

    def ask(self, slot: int) -> Intent:
        intent = asked(slot, len(self.intents))
        vm = self.cloud.launch(intent.request)
        self.intents[intent.id] = replace(intent, state="UP", instance_id=vm.instance_id)
        return self.intents[intent.id]

    def write(self, intent: Intent, text: str) -> None:
        self.cloud.write_console(intent.instance_id, text)

    def end(self, intent: Intent, reason: str) -> None:
        self.cloud._end(intent.instance_id, reason)
        self.intents[intent.id] = replace(intent, state="GONE", ending="died", reason=reason)

    def look(self, after_s: float = 5.0) -> None:
        self.now += after_s
        self.cloud.advance(after_s)
        self.boots.look(self.intents.values(), self.agents, self.wanted, self.now)
        self.watch.look()
        self.boots.look(self.intents.values(), self.agents, self.wanted, self.now)


def asked(slot: int, number: int, *, took_s: float | None = None, **more: Any) -> Intent:
    joined = None if took_s is None else BEGAN + timedelta(seconds=took_s)
    return made_intent(
        {"token": token_of(number), "slot": slot, "zone": "fake-1a", "run_max_s": 1e6, "user_data": DOCUMENT},
        provider="fake",
        region="fake-1",
        reserved_usd=0.0,
        acks=0 if took_s is None else 9,
        times=VmTimes(created_at=BEGAN, joined_at=joined),
        **more,
    )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_each_vm_is_shown_as_it_comes(scene: Scene) -> None:
    first = scene.ask(0)
    scene.look()
    scene.look(after_s=20.0)
    scene.write(first, "scavenger: booting\n")
    scene.look()
    scene.write(first, "scavenger: booting\nscavenger: installing scavenger-ml\n")
    scene.look()
    scene.agents[first.id] = JOINED
    scene.look()
    scene.look()

    assert scene.progress == [
        "VMs: aggregators asked (0 s), 2 more to follow",
        "VMs: aggregators running (20 s), 2 more to follow",
        "VMs: aggregators booting (25 s), 2 more to follow",
        "VMs: aggregators installing (30 s), 2 more to follow",
        "VMs: the first one reaches this machine, so the other 2 are rented",
        "VMs: aggregators joined (35 s), 2 more to follow",
    ]
    assert scene.notes == []


def test_a_vm_that_is_shut_out_has_not_joined(scene: Scene) -> None:
    first = scene.ask(0)
    scene.agents[first.id] = replace(JOINED, is_ending=True)
    scene.look()

    assert scene.progress == ["VMs: aggregators asked (0 s), 2 more to follow"]
    assert scene.boots.one_first


def test_the_others_follow_as_soon_as_the_first_one_reaches_this_machine(scene: Scene) -> None:
    first = scene.ask(0)
    scene.look()
    assert scene.boots.one_first

    scene.write(first, "scavenger: reaches its coordinator\n")
    scene.look()

    assert not scene.boots.one_first


@pytest.mark.parametrize(
    ("changes", "proven"),
    [
        ({}, True),
        (
            {
                "user_data": boot_document(
                    "tcp://203.0.113.7:4711", "x" * 40, "fake", VmPackage(requirement="scavenger-ml")
                )
            },
            True,
        ),
        (
            {
                "user_data": boot_document(
                    "tcp://198.51.100.1:7000", "k" * 40, "fake", VmPackage(requirement="scavenger-ml")
                )
            },
            False,
        ),
        (
            {
                "user_data": boot_document(
                    ENDPOINT, "k" * 40, "fake", VmPackage(requirement="https://e.com/x.whl")
                )
            },
            False,
        ),
        ({"user_data": "#!/bin/sh"}, False),
        ({"image": "ami-1"}, False),
        ({"region": "fake-2"}, False),
        ({"acks": 0}, False),
    ],
)
def test_where_vms_have_joined_in_the_same_way_all_are_rented_at_once(
    tmp_path: Path, changes: dict[str, Any], proven: bool
) -> None:
    history = (changed(asked(0, 0, took_s=50.0), **changes),)

    assert is_proven(history, INPUTS.spec) is proven
    assert Scene(tmp_path, history).boots.one_first is not proven


def test_a_late_vm_is_reported_once_with_its_console_before_thrice_the_usual_time(tmp_path: Path) -> None:
    scene = Scene(tmp_path, (asked(0, 99, took_s=40.0),))
    vm = scene.ask(0)
    scene.write(vm, "scavenger: booting\nscavenger: installing scavenger-ml\nCollecting tensorflow\n")
    scene.look()
    scene.look(after_s=99.0)
    assert scene.notes == []
    scene.look(after_s=2.0)
    scene.look(after_s=60.0)

    (note,) = scene.notes
    assert 101.0 < 3 * 40.0
    path = tmp_path / f"console-{vm.instance_id}.log"
    assert note == (
        f"the aggregators' VM ({vm.instance_id}, small in fake-1a) has not joined after 101 s, usually it takes 40 s: "
        f'it is installing; its console ends with "scavenger: installing scavenger-ml | Collecting tensorflow" '
        f"(in {tmp_path.name}/{path.name})"
    )
    assert path.read_text().startswith("scavenger: booting")


def test_an_address_that_vms_cannot_reach_is_reported_at_the_first_try(scene: Scene) -> None:
    vm = scene.ask(0)
    scene.write(vm, "scavenger: no answer from its coordinator at 203.0.113.7:7000: timed out\n")
    scene.look()

    (note,) = scene.notes
    assert "cannot reach this machine at 203.0.113.7:7000 (timed out); SCAVENGER_ADDRESS must be" in note
    assert scene.boots.one_first
    scene.end(vm, "Client.InstanceInitiatedShutdown")
    scene.look()
    assert scene.notes[1:] == [
        f"the aggregators' VM ({vm.instance_id}, small in fake-1a) has ended and not joined, for the reason above"
    ]


@pytest.mark.parametrize(
    ("reason", "console", "error"),
    [
        ("Client.VolumeLimitExceeded: Volume limit exceeded", "", QuotaError),
        ("Server.InternalError: Internal error on launch", "", TransientError),
        ("TERMINATED", "scavenger: Scavenger cannot be installed; this VM ends", ConfigurationError),
    ],
)
def test_two_vms_that_fail_alike_end_the_job_with_cause_and_fix(
    scene: Scene, reason: str, console: str, error: type[Exception]
) -> None:
    for count in range(2):
        assert scene.boots.failure is None
        vm = scene.ask(0)
        scene.write(vm, console)
        scene.end(vm, reason)
        scene.look()
        assert len(scene.notes) == count + 1
        assert ("for the reason above" in scene.notes[count]) == (count == 1)

    assert scene.boots.failure is not None
    raised = scene.boots.error(scene.boots.failure)
    assert isinstance(raised, error)
    assert str(raised).startswith("2 VMs failed alike, and more would: each ")
    assert scene.boots.failure.fix in str(raised)


def test_one_that_joins_between_two_failures_proves_that_others_can(scene: Scene) -> None:
    for slot in (0, 1):
        vm = scene.ask(slot)
        scene.look()
        scene.end(vm, "Server.InternalError")
        scene.look()
        if slot == 0:
            scene.agents[scene.ask(2).id] = JOINED
            scene.look()

    assert scene.boots.failure is None


def test_without_the_right_to_read_consoles_that_is_said(scene: Scene) -> None:
    vm = scene.ask(0)
    scene.cloud.script("console", *[Fault(CredentialsError("no ec2:GetConsoleOutput"))] * 9)
    scene.look()
    scene.look(after_s=30.0)
    scene.look(after_s=470.0)

    assert scene.notes == [
        f"the aggregators' VM ({vm.instance_id}, small in fake-1a) has not joined after 8 min, usually it takes about "
        "3 min: it is running; its console cannot be read: no ec2:GetConsoleOutput"
    ]


def test_a_vm_of_which_the_cloud_shows_nothing_more_is_explained_by_what_it_showed(scene: Scene) -> None:
    vm = scene.ask(0)
    scene.write(vm, "scavenger: its time limit is not set; this VM ends\n")
    scene.look()
    scene.cloud.script("describe", *[Fault(CloudUnavailableError("no answer"))] * 99)
    scene.cloud.script("console", *[Fault(CloudUnavailableError("no answer"))] * 99)
    scene.end(vm, "TERMINATED")
    scene.look()
    scene.look(after_s=20.0)

    assert "does not run boothooks" in scene.notes[0]
    assert len(scene.notes) == 2
