"""What every machine of a leader promises (`scavenger.control.leading.seat`), as tests that each kind inherits."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake import FakeProvider

from scavenger.control.leading.following import LeaderSession
from scavenger.control.leading.record import LeaderRecord, Leaders
from scavenger.control.leading.seat import Seat
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmSettings, VmTags
from scavenger.errors import CloudError, GoneError
from scavenger.store import Store

TEMPLATE = LaunchTemplate(3600.0, settings=VmSettings(logins_from=("203.0.113.7/32",), identity="leader"))


class SeatWorld(ABC):
    """A leader's machine, before a cloud in the test's hands.

    Attributes:
        cloud: Whose time passes while the seat waits.
        said: What the user was shown.
    """

    provider, region, namespace = "aws", "us-east-1", ""

    def __init__(self, folder: Path, cloud: FakeProvider) -> None:
        self.cloud, self.said = cloud, list[str]()
        self.books = Store.open(f"sqlite:///{folder / 'scavenger.db'}")
        self.leaders = Leaders.beside(self.books)
        self.record = LeaderRecord(
            str(uuid.uuid4()),
            "digits",
            "/jobs/digits.yaml",
            self.provider,
            self.region,
            "ssh-ed25519 AAAA",
            "/jobs/.scavenger",
            job_id="ffff-1",
            namespace=self.namespace,
        )
        self.leaders.put(self.record)
        with self.leaders.open_store(self.record) as store:
            self.owner = store.installation()

    @abstractmethod
    def seat(self) -> Seat:
        """As a command finds it that knows no more than the record."""

    @abstractmethod
    def rent(self) -> str:
        """The machine is there, and leads; its id."""

    def begins(self) -> None:
        """A command of this machine is about to have it lead the job."""
        with self.leaders.open_store(self.record) as store:
            store.create_job("digits", spec={}, job_file="/jobs/digits.yaml", job_id=self.record.id)

    def begun(self) -> None:
        """That command is done with it."""
        with self.leaders.open_store(self.record) as store:
            store.finish_job(self.record.id, state="stopped", report=None, exit_code=None)

    def rent_worker(self) -> str:
        """The leader has rented a machine, of which nothing is on record here; its id."""
        tags = VmTags(self.owner, str(uuid.uuid4()), "there", 1, 0)
        zone = self.cloud.zones("small")[0]
        return self.cloud.launch(VmRequest(tags, "small", zone, False, TEMPLATE)).instance_id

    def change(self, **fields: Any) -> None:
        self.record = self.leaders.change(self.record, **fields)

    def alive(self) -> list[str]:
        """Machines that are paid for."""
        return [one.instance_id for one in self.cloud.truth() if one.alive]


class SeatConformance:
    """The tests; a module derives `Test...` from it, with a fixture `world`."""

    @pytest.fixture
    def led(self, world: SeatWorld) -> SeatWorld:
        """One whose machine and worker are there."""
        world.begins()
        self.machine = world.rent()
        world.begun()
        self.worker = world.rent_worker()
        return world

    def test_it_is_there_until_it_is_ended_and_nothing_is_left(self, led: SeatWorld) -> None:
        assert led.seat().state() == "there"
        led.seat().let_in()

        assert led.seat().end() == ()

        assert led.seat().state() == "gone"
        assert led.alive() == []
        assert led.seat().end() == (), "it may be asked for again"

    def test_one_that_is_lost_is_said_with_what_is_lost_and_how_it_goes_on(self, led: SeatWorld) -> None:
        led.cloud.delete_by_hand(self.machine)
        led.cloud.advance(60.0)

        for checkpoints, lost in (("", "everything that was trained"), ("s3://b/c", "at most 10 min")):
            led.change(checkpoints=checkpoints)
            with pytest.raises(GoneError, match="is gone") as told:
                led.seat().let_in()
            assert lost in str(told.value)
            assert "`scavenger resume digits`" in str(told.value)

    def test_a_cloud_that_does_not_answer_makes_it_neither_there_nor_gone(self, led: SeatWorld) -> None:
        led.cloud.deny()

        assert led.seat().state() == "unknown"
        assert "access denied" in led.said[-1]
        with pytest.raises(CloudError):
            led.seat().let_in()
        LeaderSession(led.seat()).readmit()  # which asks again later
        assert "cannot be looked at now" in led.said[-1]
        with pytest.raises(CloudError):
            led.seat().leftovers()

    def test_nothing_is_left_over_of_one_that_leads_or_is_about_to(self, world: SeatWorld) -> None:
        world.begins()
        world.rent()
        assert world.seat().leftovers() is None
        world.change(job_id="")
        assert world.seat().leftovers() is None, "its command still starts it"
        world.begun()
        world.change(job_id="ffff-1")

        assert world.seat().leftovers() is None

    def test_all_of_one_that_leads_no_job_is_left_over_and_ended_once_it_is_asked_for(
        self, led: SeatWorld
    ) -> None:
        led.change(job_id="")

        found = led.seat().leftovers()

        assert found is not None
        assert {one.vm.instance_id: one.reason for one in found} == dict.fromkeys(
            (self.machine, self.worker), "it leads no job"
        )
        assert led.seat().clear(()) == ()
        assert sorted(led.alive()) == sorted((self.machine, self.worker))
        assert led.seat().clear(found) == ()
        assert led.alive() == []

    def test_what_one_that_is_gone_has_rented_is_left_over(self, led: SeatWorld) -> None:
        led.cloud.delete_by_hand(self.machine)
        led.cloud.advance(60.0)

        found = led.seat().leftovers()

        assert found is not None
        assert [(one.vm.instance_id, one.reason) for one in found] == [(self.worker, "its leader is gone")]
        assert led.seat().clear(found) == ()
        assert led.alive() == []

    def test_an_end_that_failed_is_said_stays_on_record_and_is_found_by_a_sweep(self, led: SeatWorld) -> None:
        led.cloud.deny()

        (line,) = LeaderSession(led.seat()).end(led.books)

        assert f"job digits in {led.provider}/{led.region}" in line
        (kept,) = led.leaders.all()
        assert replace(kept, seen_usd=0.0) == replace(led.record, ending=True)
        led.record = kept
        led.cloud.deny(on=False)
        found = led.seat().leftovers()
        assert found is not None
        assert {one.vm.instance_id: one.reason for one in found} == dict.fromkeys(
            (self.machine, self.worker), "its end had failed"
        )
        assert led.seat().clear(found) == ()
        assert LeaderSession(led.seat()).end(led.books) == ()
        assert (list(led.leaders.all()), led.alive()) == ([], [])
