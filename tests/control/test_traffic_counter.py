"""A job's traffic between zones: counted by the step, recorded for its bill, and carried over to the next attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from scavenger.cloud.catalog.traffic import traffic_price
from scavenger.control.provisioning.traffic_counter import TrafficCounter, recorded_traffic
from scavenger.domain.cost import Traffic
from scavenger.store import Store

GIB = 2**30


def test_each_step_of_each_worker_elsewhere_sends_the_weights_twice_and_is_billed_once(
    tmp_path: Path,
) -> None:
    price = traffic_price("aws")
    assert price is not None
    with Store.open(f"sqlite:///{tmp_path / 's.db'}") as store:
        job_id = store.create_job("tiny", spec={}, job_file=tmp_path / "job.yaml").id
        first = TrafficCounter(price, recorded_traffic(store, job_id))
        first.count(100, workers=3, weights_bytes=GIB / 1000)  # a resumed job's first step, not its first 100
        first.count(110, workers=0, weights_bytes=GIB / 1000)
        first.count(120, workers=3, weights_bytes=GIB / 1000)
        first.count(115, workers=3, weights_bytes=GIB / 1000)  # back to a checkpoint
        first.count(120, workers=3, weights_bytes=GIB / 1000)
        assert first.total.gib == pytest.approx(2 * 3 * (10 + 5) / 1000)
        assert first.attempt_usd == pytest.approx(first.total.gib * 0.02)
        first.record(store, job_id, 1.0)
        assert recorded_traffic(store, job_id) == Traffic()
        first.record(store, job_id, 1.0, at_once=True)

        second = TrafficCounter(price, recorded_traffic(store, job_id))
        second.count(120, workers=1, weights_bytes=GIB)
        second.count(121, workers=1, weights_bytes=GIB)
        second.record(store, job_id, 61.0)
        total = recorded_traffic(store, job_id)

    assert total.gib == pytest.approx(2.09)
    assert second.attempt_usd == pytest.approx(0.04)
    assert total.usd == pytest.approx(2.09 * 0.02)
    assert (
        total.price
        == "$0.02 per GiB (EC2 data transfer between zones, out and in, as third parties list it, 2026-06-25)"
    )
