"""What is profiled, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spaces import CLOUD, SHARED, SPACE

from scavenger.domain.configuration import SearchSpace
from scavenger.errors import ConfigurationError, NoFeasiblePlanError
from scavenger.search.plan import SearchPlan, plan_search


def plan(
    space: SearchSpace = SPACE, strategy: str = "partial", same: bool = False, **more: int | None
) -> SearchPlan:
    return plan_search(space, strategy, has_same=same, has_any=same, steps=20, **more)  # type: ignore[arg-type]


def pairs(found: SearchPlan) -> list[tuple[int, int]]:
    return [(c.workers, c.global_batch_size) for c in found.configurations]


def test_partial_profiles_the_corners_from_the_smallest_on() -> None:
    found = plan()

    assert pairs(found) == [(1, 64), (1, 1024), (8, 1024), (8, 64)]
    assert found.steps_per_configuration == 20


def test_partial_profiles_the_kink_of_shared_processors() -> None:
    space = SearchSpace((SHARED,), (1, 2, 3, 4), (64, 512))

    assert pairs(plan(space)) == [(1, 64), (1, 512), (2, 512), (2, 64), (4, 64), (4, 512)]


@pytest.mark.parametrize("workers", [(1, 2), (1, 4), (2, 4)])
def test_a_kink_at_the_edge_of_the_cluster_sizes_is_no_extra_point(workers: tuple[int, ...]) -> None:
    assert len(pairs(plan(SearchSpace((SHARED,), workers, (64, 512))))) == 4


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


@given(SIZES, SIZES, st.sampled_from(["partial", "full"]))
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
