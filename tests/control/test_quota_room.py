"""What quotas leave of a search: all that is left fits, whatever the job rents beside its workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.control.places.room import Permitted
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.vm import Quota

STANDARD = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
SPOT = "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"


def offer(vm: str, cpus: int, *, spot: bool = False) -> Offer:
    return Offer("aws", "r", vm, 0.1, "tests", cpus, 2**32, spot=spot)


LARGE, SMALL = offer("c5.xlarge", 4), offer("c5.large", 2)


def permitted(*quotas: Quota, offers: tuple[Offer, ...] = (LARGE, SMALL), provider: str = "aws") -> Permitted:
    space = SearchSpace(offers, tuple(range(1, 9)), (64,))
    aggregator = replace(offers[0], spot=False)
    return Permitted(provider, space, quotas, aggregator, "auto")


@given(st.integers(0, 80), st.integers(0, 40), st.integers(1, 6))
def test_what_is_left_fits_and_more_aggregator_vms_leave_no_more(limit: int, used: int, vms: int) -> None:
    asked = permitted(Quota(STANDARD, "r", limit, used))
    room, fewer = asked.room(vms), asked.room(vms - 1)
    left = limit - used - 4 * vms

    if room.space is None:
        assert left < 2, "even one worker of the smaller type does not fit"
        assert room.quota == asked.quotas[0]
        assert "leaves room for" in room.notes[0]
        return
    assert all(room.space.workers[-1] * one.cpus <= left for one in room.space.offers)
    assert fewer.space is not None
    assert fewer.space.workers[-1] >= room.space.workers[-1]
    assert (room.notes == ()) == (room.space == asked.space)


def test_quotas_are_counted_in_their_own_units() -> None:
    pods = permitted(
        Quota("team/pods", "r", 5, 0),
        offers=(offer("4cpu-8gib", 4), offer("1cpu-2gib", 1)),
        provider="kubernetes",
    )
    found = pods.room(2).space

    assert found is not None
    assert found.workers == (1, 2, 3), "five pods, of which two are for aggregators, however large"


def test_the_quota_of_aggregator_vms_may_be_another_than_that_of_workers() -> None:
    """Workers on spot VMs have room, but the aggregators' VMs are rented on demand."""
    spot = replace(permitted(offers=(offer("c5.xlarge", 4, spot=True),)), spot="always")
    asked = replace(spot, quotas=(Quota(SPOT, "r", 100, 0), Quota(STANDARD, "r", 8, 0)))

    assert asked.room(2).space == asked.space
    none = asked.room(3)
    assert none.space is None
    assert none.notes == (
        f"quota {STANDARD} in r (0 of 8 used) leaves room for 2 of 3 aggregator VMs c5.xlarge",
    )


@pytest.mark.parametrize(
    ("quotas", "most"),
    [
        ((Quota(SPOT, "r", 12, 0), Quota(STANDARD, "r", 12, 0)), 5),
        ((Quota(SPOT, "r", 12, 0),), 8),
        ((), 8),
    ],
)
def test_on_demand_vms_that_stand_in_for_spot_vms_add_up(quotas: tuple[Quota, ...], most: int) -> None:
    found = permitted(*quotas, offers=(offer("c5.xlarge", 4, spot=True),)).room(1).space

    assert found is not None
    assert found.workers[-1] == most


def test_a_quota_of_both_kinds_of_vms_counts_once() -> None:
    asked = permitted(
        Quota("team/pods", "r", 6, 0), offers=(offer("4cpu-8gib", 4, spot=True),), provider="kubernetes"
    )
    found = asked.room(1).space

    assert found is not None
    assert found.workers[-1] == 5
