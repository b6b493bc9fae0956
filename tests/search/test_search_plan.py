"""What is profiled, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spaces import CLOUD, SHARED, SPACE

from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.measurement import Measurement
from scavenger.errors import ConfigurationError, NoFeasiblePlanError
from scavenger.models.job_model import TRANSFER_MAX
from scavenger.search.plan import SearchPlan, evenly, next_configuration, plan_search


def plan(
    space: SearchSpace = SPACE, strategy: str = "partial", same: bool = False, **more: int | None
) -> SearchPlan:
    return plan_search(space, strategy, has_same=same, has_any=same, steps=20, **more)  # type: ignore[arg-type]


def pairs(found: SearchPlan) -> list[tuple[int, int]]:
    return [(c.workers, c.global_batch_size) for c in found.configurations]


def test_extremes_are_the_corners_from_the_smallest_on() -> None:
    found = plan(strategy="extremes")

    assert pairs(found) == [(1, 64), (1, 1024), (8, 1024), (8, 64)]
    assert found.steps_per_configuration == 20


def test_extremes_have_the_kink_of_shared_processors() -> None:
    space = SearchSpace((SHARED,), (1, 2, 3, 4), (64, 512))

    assert pairs(plan(space, "extremes")) == [(1, 64), (1, 512), (2, 512), (2, 64), (4, 64), (4, 512)]


@pytest.mark.parametrize("workers", [(1, 2), (1, 4), (2, 4)])
def test_a_kink_at_the_edge_of_the_cluster_sizes_is_no_extra_point(workers: tuple[int, ...]) -> None:
    assert len(pairs(plan(SearchSpace((SHARED,), workers, (64, 512)), "extremes"))) == 4


def test_full_profiles_everything() -> None:
    assert set(plan(strategy="full").configurations) == set(SPACE.configurations())


def test_auto_reuses_the_same_job_and_profiles_any_other() -> None:
    assert (plan(strategy="auto", same=True).strategy, plan(strategy="auto").strategy) == ("none", "partial")
    assert plan(strategy="auto", same=True).configurations == ()


@pytest.mark.parametrize("strategy", ["none", "universal", "guess"])
def test_a_strategy_that_cannot_be_followed_is_the_users_error(strategy: str) -> None:
    with pytest.raises(ConfigurationError, match=strategy):
        plan(strategy=strategy)


def test_universal_profiles_nothing() -> None:
    found = plan_search(SPACE, "universal", has_same=False, has_any=True, steps=20)

    assert (found.strategy, found.configurations) == ("universal", ())


SIZES = st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True).map(
    lambda sizes: tuple(sorted(sizes))
)


@given(SIZES, SIZES, st.sampled_from(["extremes", "full"]))
def test_every_plan_only_grows_and_repeats_nothing(
    workers: tuple[int, ...], batches: tuple[int, ...], strategy: str
) -> None:
    space = SearchSpace((CLOUD,), workers, batches)
    try:
        found = pairs(plan(space, strategy))
    except NoFeasiblePlanError:
        assert not space.configurations()
        return

    assert found
    assert [k for k, _ in found] == sorted(k for k, _ in found)
    assert len(set(found)) == len(found)


def measured(configuration: Configuration) -> Measurement:
    """Of a job that computes 1 ms a sample and synchronises 5 ms a worker."""
    compute_s, sync_s = 0.02 + 0.001 * configuration.local_batch_size, 0.005 * (configuration.workers - 1)
    return Measurement(configuration, 20, compute_s + sync_s, 0.001, compute_s, sync_s, 1.5, 300.0, 2**28)


def searched(space: SearchSpace, points: int, **more: object) -> list[Configuration]:
    """What a partial search measures, if nothing ends it."""
    found = plan_search(space, "partial", has_same=False, has_any=False, steps=20, points=points)
    tried: list[Configuration] = []
    while (
        configuration := next_configuration(found, space, [measured(c) for c in tried], tried, **more)  # type: ignore[arg-type]
    ) is not None:
        tried.append(configuration)
    return tried


def test_partial_begins_with_the_smallest_and_repeats_nothing() -> None:
    tried = searched(SPACE, 6)

    assert (tried[0].workers, tried[0].global_batch_size) == (1, 64)
    assert len(set(tried)) == len(tried) == 6
    assert {c.workers for c in tried} >= {1, 8}


@pytest.mark.slow
@given(SIZES, SIZES, st.integers(1, 9))
def test_partial_ends_after_its_points_or_when_everything_is_measured(
    workers: tuple[int, ...], batches: tuple[int, ...], points: int
) -> None:
    space = SearchSpace((CLOUD,), workers, batches)
    if not (everything := space.configurations()):
        return
    tried = searched(space, points)

    assert 1 <= len(tried) <= min(points, len(everything))
    assert set(tried) <= set(everything)


@given(SIZES, SIZES, st.integers(2, 7), st.data())
def test_the_last_point_of_one_type_is_the_choice_if_its_workers_were_never_measured(
    workers: tuple[int, ...], batches: tuple[int, ...], points: int, data: st.DataObject
) -> None:
    space = SearchSpace((CLOUD,), workers, batches)
    if not (everything := space.configurations()):
        return
    favourite = data.draw(st.sampled_from(everything))
    free, tried = searched(space, points), searched(space, points, favourite=favourite)
    assert tried[: points - 1] == free[: points - 1]
    if len(free) == points and favourite.workers not in {one.workers for one in free[:-1]}:
        assert tried[-1] == favourite
    else:
        assert tried == free
    types = replace(space, offers=(CLOUD, replace(CLOUD, vm="other")))
    assert searched(types, points, favourite=favourite) == searched(types, points)


@pytest.mark.parametrize("strategy", ["partial", "full", "extremes"])
def test_nothing_is_proposed_that_did_not_fit_into_memory(strategy: str) -> None:
    found = plan(strategy=strategy)
    tried: list[Configuration] = []
    while (
        configuration := next_configuration(found, SPACE, [measured(c) for c in tried], tried, too_many=128)
    ) is not None:
        tried.append(configuration)

    assert tried
    assert (
        max(c.local_batch_size for c in tried)
        < 128
        <= max(c.local_batch_size for c in SPACE.configurations())
    )
    assert next_configuration(found, SPACE, [], [], too_many=1) is None


def test_workers_that_would_have_to_be_started_are_asked_for_later() -> None:
    quick, slow = searched(SPACE, 4, ready=1), searched(SPACE, 4, ready=1, setup_s=1000.0)

    def first_growth(tried: list[Configuration]) -> int:
        return next((i for i, c in enumerate(tried) if c.workers > 1), len(tried))

    assert first_growth(slow) >= first_growth(quick)


def test_another_vm_type_is_measured_at_a_few_places_only() -> None:
    other = replace(CLOUD, vm="other", cpus=8)
    tried = searched(SearchSpace((CLOUD, other), SPACE.workers, SPACE.global_batch_sizes), 8)

    assert [c.vm for c in tried] == [CLOUD.vm] * (8 - TRANSFER_MAX) + ["other"] * TRANSFER_MAX


def test_every_vm_type_is_measured_however_few_points_are_wanted() -> None:
    others = tuple(replace(CLOUD, vm=f"other-{n}", cpus=8) for n in range(2))
    tried = searched(SearchSpace((CLOUD, *others), SPACE.workers, SPACE.global_batch_sizes), 2)

    vms = [c.vm for c in tried]
    assert vms == [vm for vm in (CLOUD.vm, "other-0", "other-1") for _ in range(TRANSFER_MAX)]


def test_full_and_extremes_are_followed_in_their_order() -> None:
    found = plan(strategy="extremes")
    tried: list[Configuration] = []
    while (configuration := next_configuration(found, SPACE, [], tried)) is not None:
        tried.append(configuration)

    assert tuple(tried) == found.configurations


@pytest.mark.slow
def test_of_a_huge_space_even_parts_are_weighed_with_its_ends() -> None:
    space = SearchSpace((CLOUD,), tuple(range(1, 51)), tuple(range(50, 2050)))
    found = searched(space, 6)

    assert len(set(found)) == 6
    assert all(c.workers in space.workers and c.global_batch_size in space.global_batch_sizes for c in found)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=300, unique=True), st.integers(2, 64))
def test_even_parts_are_a_choice_with_both_ends(values: list[int], most: int) -> None:
    given_ = tuple(sorted(values))
    found = evenly(given_, most)

    assert set(found) <= set(given_)
    assert list(found) == sorted(set(found))
    assert len(found) <= most
    assert (found[0], found[-1]) == (given_[0], given_[-1])
    assert found == given_ or len(given_) > most
