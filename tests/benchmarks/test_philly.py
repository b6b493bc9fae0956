"""How jobs of the Philly trace become loads of a pool, and a replay of some of them, where the data is there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.philly import OURS, ByBucket, Workload, ours, study
from benchmarks.philly_jobs import NODE, Arrival, Mapping, ModelShape, Rate, bert_base, busiest, read_philly
from benchmarks.pools.trace import PoolManager
from benchmarks.public_steps import DATA

pytestmark = pytest.mark.slow

RATE = Rate(5e-10, 6e-11)
RESNET = ModelShape("ResNet50", (9_408, 2_048_000, 23_526_184), (118e6, 2e6, 3_738e6))


def test_bert_has_its_published_size() -> None:
    assert sum(bert_base().parameters) == 109_482_240


def test_buckets_hold_the_model_last_layer_first() -> None:
    buckets = bert_base().buckets()

    assert sum(size for size, _ in buckets) == 4 * 109_482_240
    assert all(size == 4 * 2**20 for size, _ in buckets[:-1])
    ready = [done for _, done in buckets]
    assert ready == sorted(ready)
    assert ready[-1] == pytest.approx(1.0)
    # embeddings multiply nothing: their gradients are whole when those of the first layer are
    assert ready.count(ready[-1]) >= 22


def test_the_rate_is_the_line_through_the_times() -> None:
    rate = Rate.through({1: 0.06, 2: 0.07, 4: 0.09}, 25_000_000)

    assert rate.seconds(100_000_000, 3) == pytest.approx(0.08)


def test_the_busiest_window_has_the_jobs_that_run_when_it_begins() -> None:
    half_day_s = 43_200.0
    arrivals = [
        Arrival("long", 0.0, 10 * half_day_s, 8),
        Arrival("early", 0.0, 10.0, 1),
        Arrival("late", 3 * half_day_s + 100.0, 0.9 * half_day_s, 1),
    ]

    begin_s, jobs = busiest(arrivals, half_day_s)

    assert begin_s == 3 * half_day_s
    assert jobs == [
        Arrival("long", begin_s, half_day_s, 8),
        Arrival("late", begin_s + 100.0, 0.9 * half_day_s, 1),
    ]


@pytest.fixture(scope="module")
def arrivals() -> Sequence[Arrival]:
    if not ((DATA / "philly").is_dir() and (DATA / "elasticflow").is_dir()):
        pytest.skip(f"{DATA} is not here")
    return [one for one in read_philly() if one.gpus > 4][:60]


def test_a_job_is_the_same_whenever_it_is_asked_for(arrivals: Sequence[Arrival]) -> None:
    jobs = Mapping((RESNET, bert_base()), RATE)
    first, again = jobs.job(arrivals[0]), Mapping((RESNET, bert_base()), RATE).job(arrivals[0])

    assert first == again
    assert first.servers == 2
    assert first.load.step_time_s > max(jobs.steps(arrivals[0]).ready_s)
    assert len(jobs.steps(arrivals[0]).ready_s) == len(first.load.buckets)
    assert sum(bucket.memory_bytes for bucket in first.load.buckets) < NODE.memory_bytes


@pytest.mark.parametrize(("manager", "promised"), [(ours(OURS), True), (ByBucket(OURS), False)])
def test_sharing_needs_less_than_half_of_the_static_servers(
    arrivals: Sequence[Arrival], manager: PoolManager, promised: bool
) -> None:
    jobs = Mapping((RESNET, bert_base()), RATE)

    found = study(Workload("some", tuple(arrivals)), jobs, "", manager, promised=promised)

    assert found.figures()["jobs"] == len(arrivals)
    assert found.saved > 0.6
    assert found.history.worst_ratio() <= 1.0
    assert found.figures()["loss_max"] <= OURS.loss_limit
    assert not found.history.unpromised
