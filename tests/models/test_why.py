"""Explanations of predictions: their parts are those of the prediction itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from synthetic import CORNERS, POINTS, SHARED, SPACE, profile

from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.models.job_model import JobModel, contention_of
from scavenger.models.parallel import INTERVAL_Z
from scavenger.models.why import PARTS, Why, explain

PROBES = [(c.workers, c.global_batch_size) for c in SPACE.configurations()]
CURVED = (*CORNERS[:3], (2, 64))


def fitted(points: tuple[tuple[int, int], ...], space: SearchSpace = SPACE) -> JobModel:
    (offer,) = space.offers
    return JobModel.fit(profile(points, offer=offer), space=space, epochs_hint=10.0, max_epochs=50)


def why(model: JobModel, workers: int, batch: int) -> Why:
    return explain(model, model.vms[0], workers, batch, PROBES)


@pytest.mark.parametrize("points", [POINTS, CURVED])
@pytest.mark.parametrize("offer", [*SPACE.offers, SHARED])
@pytest.mark.parametrize("place", [(4, 512), (1, 64), (16, 4096)])
def test_the_parts_add_up_to_the_prediction(
    points: tuple[tuple[int, int], ...], offer: Offer, place: tuple[int, int]
) -> None:
    model = fitted(points, replace(SPACE, offers=(offer,)))
    found = why(model, *place)
    count, batch = np.array([place[0]]), np.array([place[1]])
    predicted = model.predict(offer, count, batch)
    _, step_log_sd = model.vms[0].parallel.predict(count, batch, contention_of(offer, count))

    assert found.step_time_s == pytest.approx(predicted.step_time_s[0])
    assert (found.compute_s + found.sync_s) * math.prod(found.factors.values()) == pytest.approx(
        found.step_time_s, rel=1e-4
    )
    assert found.half_width == pytest.approx(math.log(predicted.time_high_s[0] / predicted.time_s[0]))
    assert found.step_half_width == pytest.approx(INTERVAL_Z * step_log_sd[0])
    assert sum(found.shares.values()) == pytest.approx(1.0, rel=1e-4)
    assert set(found.shares) | set(found.factors) <= set(PARTS)
    assert found.measured == (place in points) == ("measurement" in found.shares)
    assert found.laws == {model.vms[0].parallel.law.kind: 1.0}


def test_a_point_weighs_as_much_as_it_moves_the_prediction() -> None:
    model = fitted(POINTS)
    (vm,) = model.vms
    found = why(model, 4, 512)
    assert [abs(point.weight) for point in found.points] == sorted(
        (abs(point.weight) for point in found.points), reverse=True
    )
    for point in found.points[:2]:
        changed = tuple(
            replace(seen, step_time_s=seen.step_time_s * 1.001)
            if (seen.workers, seen.global_batch_size) == (point.workers, point.global_batch_size)
            else seen
            for seen in vm.parallel.measured
        )
        moved = replace(vm, parallel=replace(vm.parallel, measured=changed))
        # the law stays as it was fitted, so the smooth parts alone follow
        part = explain(model, moved, 4, 512, ()).step_time_s / found.step_time_s - 1.0
        assert 0.0 < part / 0.001 < point.weight


def test_the_configuration_itself_narrows_its_step_time_most_and_neighbours_more_than_distant_ones() -> None:
    found = why(fitted(CURVED), 4, 512)

    assert (found.probes[0].workers, found.probes[0].global_batch_size) == (4, 512)
    assert found.probes[0].step_half_width < 0.05 < found.step_half_width
    widths = [probe.step_half_width for probe in found.probes]
    assert widths == sorted(widths)
    assert all(probe.half_width < found.half_width for probe in found.probes)


def test_without_a_probe_nothing_narrows_it() -> None:
    model = fitted(POINTS)

    assert explain(model, model.vms[0], 4, 512, ()).probes == ()


def test_a_batch_that_leaves_workers_without_a_sample_is_refused() -> None:
    model = fitted(POINTS)

    with pytest.raises(ValueError, match="1 <= K <= B"):
        explain(model, model.vms[0], 4, 2, ())


def test_the_shared_processors_are_stored_with_the_models() -> None:
    model = fitted(POINTS, replace(SPACE, offers=(SHARED,)))

    assert model.vms[0].shared_cpus == SHARED.shared_cpus
    assert JobModel.from_dict(model.to_dict()) == model
