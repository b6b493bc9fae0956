"""What the contract in `scavenger.cloud.base` asks of a provider, asked of each of them.

A provider's test module derives a class `Test...` from `ProviderConformance` and gives it a fixture `world`: the
provider before a cloud whose faults, time and truth are in the test's hands, as a server that plays the cloud::

    class TestAcme(ProviderConformance):
        @pytest.fixture
        def world(self) -> World:
            return AcmeWorld()

What there is not at a cloud, the class names in `lacks`; tests that need it are skipped, and say so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Protocol
from uuid import NAMESPACE_URL, uuid5

import pytest

from scavenger import errors
from scavenger.cloud.base import CONSOLE_CHARACTERS, Provider
from scavenger.domain.vm import LaunchTemplate, VmRequest, VmSeen, VmTags

__all__ = ["Fact", "Hook", "ProviderConformance", "World", "alive", "make_request"]

OWNER = "conformance"
EVERY_CALL = 1_000
"""More calls than any operation makes, its own retries included."""
LONG_S = 900.0
"""Longer than any VM takes to come up, or to go."""
DAY_S = 86_400.0
READY = "#!/bin/sh\necho ready\n"

Hook = Literal["spot", "quotas", "throttling", "clock", "hiding"]
"""What a cloud may lack: VMs that it takes back, limits of the account, refusals of calls that are too many, a clock
that the test can advance, and lists that miss young VMs."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A VM as it truly is; `alive` until it is not paid for any more."""

    instance_id: str
    token: str
    owner: str
    zone: str
    alive: bool


class World(Protocol):
    """A provider before a cloud in the test's hands.

    A world may have `user_data`, where a VM ends with what it runs: a script that does not end by itself.

    Attributes:
        vm: A type that at least two zones have, of which 12 may live at once.
        vm_unknown, instance_unknown: Well-formed names of a type and a VM that there never were.
        faults_fired: How many calls met a fault so far: a test of faults is none where this does not grow.
    """

    @property
    def provider(self) -> Provider: ...
    @property
    def vm(self) -> str: ...
    @property
    def vm_unknown(self) -> str: ...
    @property
    def instance_unknown(self) -> str: ...
    @property
    def faults_fired(self) -> int: ...

    def stock_out(self, zone: str, *, on: bool = True) -> None:
        """The zone has no VMs to give."""

    def limit(self, vms: int | None) -> None:
        """The account may have so many VMs alive, of any kind; None for as many as it likes."""

    def throttle(self, calls: int) -> None:
        """So many of the next calls are refused as too many; 0 ends it."""

    def fail(self, calls: int) -> None:
        """So many of the next calls meet a fault of the cloud's own, and nothing is done; 0 ends it."""

    def deny(self, *, on: bool = True) -> None:
        """The cloud does not let us do anything."""

    def lose_answers(self, calls: int) -> None:
        """So many of the next calls that start or end a VM are done, and not answered."""

    def hide(self, seconds: float) -> None:
        """Listings miss VMs younger than this."""

    def preempt(self, instance_id: str) -> None:
        """The cloud takes the VM back, at once."""

    def delete_by_hand(self, instance_id: str) -> None:
        """Somebody ends the VM at the cloud's console."""

    def write_console(self, instance_id: str, text: str) -> None:
        """The VM writes this to its console."""

    def add_foreign(self, zone: str) -> str:
        """Somebody else's VM in the same account, without our tags; its id."""

    def advance(self, seconds: float) -> None:
        """Let time go by, for the cloud and for the provider's own clock."""

    def truth(self) -> tuple[Fact, ...]:
        """Every VM that ever was, as far as the cloud remembers."""


def token_of(name: object) -> str:
    """A UUID that is the same in every run."""
    return str(uuid5(NAMESPACE_URL, f"scavenger/{name}"))


def make_request(world: World, name: object = 0, **changes: object) -> VmRequest:
    """A launch of the world's VM type in its first zone; fields of its parts are changed by their own names."""
    request = VmRequest(
        VmTags(OWNER, token_of(name), "job-7", 3, 2),
        world.vm,
        world.provider.zones(world.vm)[0],
        False,
        LaunchTemplate(30 * DAY_S, user_data=getattr(world, "user_data", READY), labels=(("team", "blue"),)),
        life_s=30 * DAY_S,
    )
    changed: VmRequest = _changed(request, changes)
    assert not changes, f"a launch has no {sorted(changes)}"
    return changed


def _changed(value: Any, changes: dict[str, object]) -> Any:
    own = {one.name: changes.pop(one.name) for one in fields(value) if one.name in changes}
    parts = {one.name: getattr(value, one.name) for one in fields(value) if one.name not in own}
    return replace(
        value, **own, **{name: _changed(part, changes) for name, part in parts.items() if is_dataclass(part)}
    )


def alive(world: World, owner: str = OWNER) -> list[Fact]:
    return [fact for fact in world.truth() if fact.alive and fact.owner == owner]


def assert_for_a_person(error: BaseException) -> None:
    text = str(error)
    assert text.strip()
    assert "\n" not in text
    assert len(text) < 400


def operations(world: World, seen: VmSeen) -> dict[str, Callable[[], object]]:
    """Every call that must not swallow a fault."""
    provider = world.provider
    request = make_request(world, "operation")
    return {
        "launch": lambda: provider.launch(request),
        "describe": lambda: provider.describe(seen.instance_id, seen.zone),
        "terminate": lambda: provider.terminate(seen.instance_id, seen.zone),
        "list_owned": lambda: provider.list_owned(OWNER),
        "console": lambda: provider.console(seen.instance_id, seen.zone),
        "remove_leftovers": lambda: provider.remove_leftovers(OWNER),
    }


class ProviderConformance:
    """The contract; see the module.

    Attributes:
        lacks: What there is not at this cloud, so that the hooks of that are not called.
    """

    lacks: ClassVar[Collection[Hook]] = ()

    @pytest.fixture
    def world(self) -> World:
        raise NotImplementedError("the class under test gives its own")

    def _need(self, *hooks: Hook) -> None:
        if missing := [hook for hook in hooks if hook in self.lacks]:
            pytest.skip(f"this cloud lacks {', '.join(missing)}")

    # Places and requests

    def test_a_type_is_offered_in_the_zones_of_the_region_alone(self, world: World) -> None:
        zones = world.provider.zones(world.vm)

        assert len(set(zones)) == len(zones) >= 2
        assert all(zone.startswith(world.provider.region) for zone in zones)

    def test_an_unknown_type_is_named(self, world: World) -> None:
        with pytest.raises(errors.ConfigurationError) as caught:
            world.provider.zones(world.vm_unknown)

        assert world.vm_unknown in str(caught.value)
        assert_for_a_person(caught.value)

    @pytest.mark.parametrize("wrong", ["type", "zone"])
    def test_what_the_cloud_does_not_have_is_refused_and_nothing_started(
        self, world: World, wrong: str
    ) -> None:
        request = make_request(world)
        if wrong == "type":
            request = replace(request, vm=world.vm_unknown)
        else:
            request = replace(request, zone=f"{world.provider.region}-nowhere")

        with pytest.raises(errors.ConfigurationError) as caught:
            world.provider.launch(request)

        assert_for_a_person(caught.value)
        assert alive(world) == []

    # Launch

    @pytest.mark.parametrize("spot", [False, True])
    def test_a_vm_carries_all_that_it_was_launched_with(self, world: World, spot: bool) -> None:
        self._need(*(("spot",) if spot else ()))
        request = make_request(world, spot=spot)

        launched = world.provider.launch(request)
        world.advance(LONG_S)

        for seen in (
            launched,
            world.provider.describe(launched.instance_id, launched.zone),
            *world.provider.list_owned(OWNER),
        ):
            assert seen.instance_id == launched.instance_id
            assert (seen.vm, seen.zone, seen.spot) == (request.vm, request.zone, spot)
            assert (seen.tags.owner, seen.tags.token, seen.tags.job_id) == (
                OWNER,
                request.tags.token,
                "job-7",
            )
            assert (seen.tags.slot, seen.tags.generation) == (3, 2)

    def test_a_vm_comes_up_with_an_address_and_a_time(self, world: World) -> None:
        launched = world.provider.launch(make_request(world))
        world.advance(LONG_S)
        seen = world.provider.describe(launched.instance_id, launched.zone)

        assert launched.state in ("pending", "running")
        assert seen.state == "running"
        assert seen.address
        assert seen.launched_at is not None
        assert seen.launched_at.tzinfo is not None
        assert seen.ended_at is None

    def test_a_token_launches_once(self, world: World) -> None:
        first = world.provider.launch(make_request(world))
        again = world.provider.launch(make_request(world))
        world.advance(LONG_S)
        later = world.provider.launch(make_request(world))

        assert first.instance_id == again.instance_id == later.instance_id
        assert later.state == "running"
        assert len(alive(world)) == 1

    def test_machines_to_avoid_that_there_are_not_keep_no_vm_from_starting(self, world: World) -> None:
        request = make_request(world, avoided=("no-such-machine", "10.0.0.7"))

        seen = world.provider.launch(request)

        assert world.provider.launch(request).instance_id == seen.instance_id
        assert len(alive(world)) == 1

    def test_different_tokens_launch_different_vms(self, world: World) -> None:
        first = world.provider.launch(make_request(world, 1))
        second = world.provider.launch(make_request(world, 2))

        assert first.instance_id != second.instance_id
        assert len(alive(world)) == 2

    def test_two_services_with_one_token_get_one_vm(self, world: World) -> None:
        request = make_request(world)
        ids: list[str] = []

        def launch() -> None:
            with contextlib.suppress(errors.CloudUnavailableError, errors.ThrottledError):
                ids.append(world.provider.launch(request).instance_id)

        threads = [threading.Thread(target=launch) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert {*ids, world.provider.launch(request).instance_id} == {
            fact.instance_id for fact in alive(world)
        }
        assert len(alive(world)) == 1

    def test_a_launch_whose_answer_was_lost_is_found_again(self, world: World) -> None:
        request = make_request(world)
        before = world.faults_fired
        world.lose_answers(1)
        with contextlib.suppress(errors.CloudUnavailableError):
            world.provider.launch(request)
        assert world.faults_fired > before
        world.lose_answers(0)

        again = world.provider.launch(request)

        assert [fact.instance_id for fact in alive(world)] == [again.instance_id]
        assert again.tags.token == request.tags.token

    def test_a_token_with_other_parameters_starts_no_second_vm(self, world: World) -> None:
        first = world.provider.launch(make_request(world))
        other = make_request(world, user_data="#!/bin/sh\necho other\n", run_max_s=7_200.0, disk_gib=30)

        try:
            second = world.provider.launch(other)
        except (errors.ConfigurationError, errors.CloudError) as error:
            assert_for_a_person(error)
        else:
            assert second.instance_id == first.instance_id

        assert [fact.instance_id for fact in alive(world)] == [first.instance_id]

    def test_the_token_of_a_vm_that_is_gone_starts_nothing(self, world: World) -> None:
        request = make_request(world)
        first = world.provider.launch(request)
        world.provider.terminate(first.instance_id, first.zone)
        world.advance(LONG_S)

        with pytest.raises(errors.GoneError) as caught:
            world.provider.launch(request)

        assert_for_a_person(caught.value)
        assert alive(world) == []

    def test_the_token_of_a_preempted_vm_starts_nothing(self, world: World) -> None:
        self._need("spot")
        request = make_request(world, spot=True)
        first = world.provider.launch(request)
        world.advance(LONG_S)
        world.preempt(first.instance_id)
        world.advance(LONG_S)

        with pytest.raises(errors.GoneError):
            world.provider.launch(request)

        assert alive(world) == []

    # Its console

    def test_the_end_of_a_console_can_be_read_and_nothing_is_no_error(self, world: World) -> None:
        seen = world.provider.launch(make_request(world))
        world.advance(LONG_S)

        assert world.provider.console(seen.instance_id, seen.zone) == ""
        world.write_console(seen.instance_id, "x" * CONSOLE_CHARACTERS + "\nscavenger: booting\n")
        text = world.provider.console(seen.instance_id, seen.zone)

        assert text.endswith("x\nscavenger: booting\n")
        assert len(text) == CONSOLE_CHARACTERS

    def test_a_vm_that_there_never_was_has_no_console(self, world: World) -> None:
        with pytest.raises(errors.GoneError) as caught:
            world.provider.console(world.instance_unknown, world.provider.zones(world.vm)[0])
        assert_for_a_person(caught.value)

    # Faults of a launch

    def test_a_zone_without_stock_is_told_and_another_serves(self, world: World) -> None:
        first, second, *_ = world.provider.zones(world.vm)
        world.stock_out(first)

        with pytest.raises(errors.StockOutError) as caught:
            world.provider.launch(make_request(world, 1, zone=first))
        assert first in str(caught.value)
        assert_for_a_person(caught.value)
        assert alive(world) == []

        assert world.provider.launch(make_request(world, 2, zone=second)).zone == second
        world.stock_out(first, on=False)
        assert world.provider.launch(make_request(world, 3, zone=first)).zone == first
        assert len(alive(world)) == 2

    @pytest.mark.parametrize("spot", [False, True])
    def test_a_quota_is_named_with_its_region_and_nothing_started(self, world: World, spot: bool) -> None:
        self._need("quotas", *(("spot",) if spot else ()))
        world.limit(1)
        world.provider.launch(make_request(world, 1, spot=spot))

        with pytest.raises(errors.QuotaError) as caught:
            world.provider.launch(make_request(world, 2, spot=spot))

        assert caught.value.quota
        assert caught.value.region == world.provider.region
        assert caught.value.quota in str(caught.value)
        assert_for_a_person(caught.value)
        assert len(alive(world)) == 1

    def test_a_quota_that_has_room_again_lets_vms_start(self, world: World) -> None:
        self._need("quotas")
        world.limit(1)
        first = world.provider.launch(make_request(world, 1))
        world.provider.terminate(first.instance_id, first.zone)
        world.advance(LONG_S)

        world.provider.launch(make_request(world, 2))

        assert len(alive(world)) == 1

    # Faults of every call

    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            ("throttle", errors.ThrottledError),
            ("deny", errors.CredentialsError),
            ("fail", errors.CloudUnavailableError),
        ],
    )
    @pytest.mark.parametrize(
        "operation", ["launch", "describe", "terminate", "list_owned", "remove_leftovers"]
    )
    def test_a_fault_is_told_for_what_it_is_and_nothing_is_done(
        self, world: World, operation: str, fault: str, error: type[errors.ScavengerError]
    ) -> None:
        self._need(*(("throttling",) if fault == "throttle" else ()))
        seen = world.provider.launch(make_request(world))
        world.advance(LONG_S)
        call = operations(world, seen)[operation]
        before = world.faults_fired
        if fault == "deny":
            world.deny()
        else:
            getattr(world, fault)(EVERY_CALL)

        with pytest.raises(error) as caught:
            call()

        assert type(caught.value) is error
        assert_for_a_person(caught.value)
        assert world.faults_fired > before
        assert [fact.instance_id for fact in alive(world)] == [seen.instance_id]

        if fault == "deny":
            world.deny(on=False)
        else:
            getattr(world, fault)(0)
        call()

    # Looking

    def test_a_vm_that_never_was_is_gone(self, world: World) -> None:
        with pytest.raises(errors.GoneError) as caught:
            world.provider.describe(world.instance_unknown, world.provider.zones(world.vm)[0])

        assert world.instance_unknown in str(caught.value)
        assert_for_a_person(caught.value)

    def test_a_young_vm_is_known_by_its_id_and_ends_when_asked_though_no_list_shows_it(
        self, world: World
    ) -> None:
        self._need("hiding")
        world.hide(world.provider.visibility_s)
        launched = world.provider.launch(make_request(world))

        assert world.provider.list_owned(OWNER) == ()
        assert world.provider.describe(launched.instance_id, launched.zone).tags.token == launched.tags.token
        for _ in range(100):
            try:
                world.provider.terminate(launched.instance_id, launched.zone)
                break
            except errors.CloudUnavailableError:
                world.advance(world.provider.visibility_s / 10)
        world.advance(LONG_S)

        assert alive(world) == []

    def test_a_list_shows_every_vm_older_than_the_bound(self, world: World) -> None:
        if "hiding" not in self.lacks:
            world.hide(world.provider.visibility_s)
        ids = {world.provider.launch(make_request(world, name)).instance_id for name in range(3)}
        world.advance(world.provider.visibility_s + 1)

        assert {seen.instance_id for seen in world.provider.list_owned(OWNER)} == ids

    def test_a_list_shows_vms_that_have_ended_for_as_long_as_the_provider_says(self, world: World) -> None:
        launched = world.provider.launch(make_request(world))
        world.advance(LONG_S)
        world.provider.terminate(launched.instance_id, launched.zone)
        world.advance(world.provider.remembers_s)

        listed = {seen.instance_id: seen.state for seen in world.provider.list_owned(OWNER)}
        assert world.provider.remembers_s == 0.0 or listed == {launched.instance_id: "gone"}

    def test_a_list_longer_than_a_page_is_whole_and_shows_no_foreign_vm(self, world: World) -> None:
        zones = world.provider.zones(world.vm)
        foreign = world.add_foreign(zones[0])
        ids = {
            world.provider.launch(make_request(world, name, zone=zones[name % 2])).instance_id
            for name in range(12)
        }
        others = world.provider.launch(make_request(world, "other", owner="somebody-else"))

        listed = [seen.instance_id for seen in world.provider.list_owned(OWNER)]

        assert sorted(listed) == sorted(ids)
        assert foreign not in listed
        assert [seen.instance_id for seen in world.provider.list_owned("somebody-else")] == [
            others.instance_id
        ]
        assert world.provider.list_owned("nobody") == ()

    # The end of a VM

    def test_a_vm_ends_once_asked_for_and_asking_again_is_no_error(self, world: World) -> None:
        launched = world.provider.launch(make_request(world))
        other = world.provider.launch(make_request(world, "other"))
        world.advance(LONG_S)

        world.provider.terminate(launched.instance_id, launched.zone)
        world.provider.terminate(launched.instance_id, launched.zone)
        world.advance(LONG_S)
        world.provider.terminate(launched.instance_id, launched.zone)
        world.advance(30 * DAY_S - 4 * LONG_S)
        world.provider.terminate(launched.instance_id, launched.zone)

        assert [fact.instance_id for fact in alive(world)] == [other.instance_id]
        with pytest.raises(errors.GoneError):
            world.provider.describe(launched.instance_id, launched.zone)

    def test_a_vm_is_not_called_gone_while_it_is_paid_for(self, world: World) -> None:
        launched = world.provider.launch(make_request(world))
        world.advance(LONG_S)
        world.provider.terminate(launched.instance_id, launched.zone)
        states = []
        for _ in range(60):
            try:
                state = world.provider.describe(launched.instance_id, launched.zone).state
            except errors.GoneError:
                state = "gone"
            assert state in ("stopping", "gone")
            assert (state == "gone") <= (alive(world) == [])
            states.append(state)
            world.advance(LONG_S / 30)

        assert states == sorted(states, reverse=True)
        assert states[-1] == "gone"

    def test_ending_a_vm_that_never_was_is_no_error(self, world: World) -> None:
        zone = world.provider.zones(world.vm)[0]
        other = world.provider.launch(make_request(world))

        world.provider.terminate(world.instance_unknown, zone)

        assert [fact.instance_id for fact in alive(world)] == [other.instance_id]

    def test_an_end_whose_answer_was_lost_may_be_asked_for_again(self, world: World) -> None:
        launched = world.provider.launch(make_request(world))
        world.advance(LONG_S)
        before = world.faults_fired
        world.lose_answers(1)
        with contextlib.suppress(errors.CloudUnavailableError):
            world.provider.terminate(launched.instance_id, launched.zone)
        assert world.faults_fired > before
        world.lose_answers(0)

        world.provider.terminate(launched.instance_id, launched.zone)
        world.advance(LONG_S)

        assert alive(world) == []

    @pytest.mark.parametrize("how", ["preempt", "delete_by_hand"])
    def test_a_vm_that_others_end_is_seen_to_go(self, world: World, how: str) -> None:
        spot = "spot" not in self.lacks
        self._need(*(("spot",) if how == "preempt" else ()))
        launched = world.provider.launch(make_request(world, spot=spot))
        world.advance(LONG_S)
        getattr(world, how)(launched.instance_id)
        world.advance(LONG_S)

        with contextlib.suppress(errors.GoneError):
            seen = world.provider.describe(launched.instance_id, launched.zone)
            assert seen.state == "gone"
            assert seen.reason
        assert all(seen.state == "gone" for seen in world.provider.list_owned(OWNER))
        world.provider.terminate(launched.instance_id, launched.zone)
        assert alive(world) == []

    def test_a_vm_ends_itself_at_its_limit_when_nobody_is_left_to_ask(self, world: World) -> None:
        self._need("clock")
        world.provider.launch(make_request(world, run_max_s=7_200.0))
        world.advance(6_900.0)
        assert len(alive(world)) == 1

        world.advance(300.0 + LONG_S)

        assert alive(world) == []

    # Quotas and leftovers

    def test_quotas_are_of_the_region_and_count_what_runs(self, world: World) -> None:
        before = {quota.name: quota for quota in world.provider.quotas()}
        world.provider.launch(make_request(world))
        after = {quota.name: quota for quota in world.provider.quotas()}

        assert {quota.region for quota in after.values()} <= {world.provider.region}
        assert all(0 <= quota.used <= quota.limit for quota in after.values())
        assert before.keys() == after.keys()
        assert not after or any(after[name].used > before[name].used for name in after)

    def test_leftovers_stay_while_a_vm_needs_them_and_go_with_the_last(self, world: World) -> None:
        launched = world.provider.launch(make_request(world))
        world.advance(LONG_S)
        assert world.provider.remove_leftovers(OWNER) == ()
        world.provider.terminate(launched.instance_id, launched.zone)
        world.advance(LONG_S)

        removed = world.provider.remove_leftovers(OWNER)

        assert len(set(removed)) == len(removed)
        assert world.provider.remove_leftovers(OWNER) == ()
        assert world.provider.launch(make_request(world, "next")).state in ("pending", "running")
