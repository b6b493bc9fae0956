"""What a job of a pool runs as with the share that it was begun with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scavenger.control.jobs.pool_seat import PoolSeat
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import JobSpec
from scavenger.domain.pool import PoolShare, slots_for, workers_of
from scavenger.scheduler.jobs.seeing import in_slots, sizes_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("searched", "told", "runs"),
    [
        ([1, 2, 4], 4, (1, 2, 4)),
        ([1, 2, 4], 3, (1, 2)),
        ([2, 4], 1, (1,)),
        ([4], 8, (8,)),  # it searches no number: the pool has chosen one
        ([4], 2, (2,)),
    ],
)
def test_a_job_searches_up_to_its_share_and_one_that_searches_none_begins_with_it(
    searched: list[int], told: int, runs: tuple[int, ...]
) -> None:
    job = JobSpec.model_validate(
        {
            "version": 1,
            "name": "tiny",
            "train": "train:job",
            "infra": "pool/gpu",
            "goal": {"max_epochs": 2},
            "search": {"workers": searched, "batch_size": [64]},
            "elastic": {"min": 1, "max": 8},
        }
    )
    within = PoolSeat("gpu", PoolShare(told, told, told, 1), token=1).within(job)

    assert within.worker_counts == runs
    assert (within.elastic_range, within.elastic.policy) == ((1, 8), "fixed")


@examples(100)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True).map(sorted),
    st.integers(1, 9),
    st.data(),
)
def test_with_its_machines_a_job_searches_what_all_their_gpus_give_it(
    searched: list[int], gpus: int, data: st.DataObject
) -> None:
    spec = {
        "version": 1,
        "name": "tiny",
        "train": "train:job",
        "infra": "pool/gpu",
        "goal": {"max_epochs": 2},
    }
    job = JobSpec.model_validate({**spec, "search": {"workers": searched, "batch_size": [64]}})
    least, most = job.elastic_range
    sizes = in_slots(sizes_of(job), gpus)
    told = data.draw(st.integers(sizes.least, sizes.most))
    seat = PoolSeat("gpu", PoolShare(told, told, told, 1), per_slot=gpus)
    within = seat.within(job)

    assert within.elastic_range == (least, most)
    assert within.worker_counts[-1] <= workers_of(told, gpus, most)
    for count in within.worker_counts:
        assert least <= count <= most
        assert count % gpus == 0 or count == most
    chosen = seat.fitted(Configuration("small", least, 64), job)
    assert slots_for(chosen.workers, gpus) == told
