"""What a job of a pool runs as with the share that it was begun with."""

from __future__ import annotations

import pytest

from scavenger.control.jobs.pool_seat import PoolSeat
from scavenger.domain.job import JobSpec
from scavenger.domain.pool import PoolShare

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
