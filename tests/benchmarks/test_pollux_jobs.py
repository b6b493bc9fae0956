"""Job models of Pollux: what is known of goodput holds for curves and stages."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import pollux_jobs
from benchmarks.pollux_jobs import FOLDER, JobModel

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER.is_dir(), reason="Pollux's data are not there")]


def model(**changed: object) -> JobModel:
    """One node of two GPUs, two epochs, batches of 8 to 32."""
    local = np.array([4.0, 8.0, 16.0])
    step = np.array([1.0, 1.5, 2.5])
    values: dict[str, object] = {
        "points": np.array([[-(-slots // 4), slots, size] for slots in (1, 2, 8, 12) for size in local]),
        "times": np.array([[took, 0.5 * (slots - 1)] for slots in (1, 2, 8, 12) for took in step]),
        "placed": {str(slots): np.array([local, step, np.full(3, 0.5 * (slots - 1))]) for slots in (1, 2)},
        "batches": np.array([8, 32]),
        "sqr": np.array([[1.0, 1.0], [1.0, 1.0]]),
        "var": np.array([[0.0, 0.0], [1e9, 1e9]]),
        "progress": np.array([10.0, 30.0]),
        "local_most": 16,
    }
    return JobModel(**{**values, **changed})  # type: ignore[arg-type]


def test_a_larger_batch_is_worth_nothing_without_noise_and_its_size_with_noise_alone() -> None:
    gain = model().gain(np.array([8.0, 16.0, 32.0]))

    assert gain[0].tolist() == [1.0, 1.0, 1.0]
    assert gain[1] == pytest.approx([1.0, 2.0, 4.0])


def test_without_noise_the_quickest_step_is_best_and_with_noise_the_most_samples_a_second() -> None:
    goodput = model().goodput()

    assert goodput[0, 2] == pytest.approx(1.0)  # 2 GPUs with 4 samples: 1 s
    assert goodput[1, 2] == pytest.approx(4.0 / 2.5)  # 2 GPUs with 16 samples
    assert goodput[1, 1] == pytest.approx(4.0 / 5.0)  # two passes of 16


def test_gradients_are_accumulated_where_a_gpu_has_no_room_for_the_batch() -> None:
    assert model(local_most=8).fixed_s(2, 32) == pytest.approx((10.0 + 30.0 / 4.0) * (1.5 + 1.0))


@pytest.mark.parametrize(
    ("name", "slots", "batch"), [("ncf", 1, 32768), ("cifar10", 12, 4096), ("bert", 16, 384)]
)
def test_the_best_batch_size_is_at_least_as_good_as_what_users_ask_for(
    name: str, slots: int, batch: int
) -> None:
    curves, work = pollux_jobs.stages(name)
    found = pollux_jobs.job_model(name)

    assert np.all(curves[:, 1] == pytest.approx(1.0))
    assert np.all(np.diff(curves[:, found.most :]) == 0.0)
    assert (work / curves[:, slots]).sum() <= 1.0001 * found.fixed_s(slots, batch)


@pytest.mark.long
def test_each_job_of_a_workload_ends_with_the_last_stage_of_its_own_model() -> None:
    jobs = pollux_jobs.adaptive(1, change_s=0.0)
    assert jobs.stages is not None
    ends = jobs.stages.ends

    for row in range(len(jobs)):
        curve = int(jobs.claims.curve[row])
        last = curve + int(np.argmax(ends[curve:] == 0.0))
        of_job = ends[curve : last + 1]
        assert np.all(np.diff(of_job) < 0.0)
        assert of_job[0] < jobs.work[row]
