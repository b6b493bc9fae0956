"""Jobs share aggregator nodes on other machines, which are drained by migration while they train."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from driving import assert_same_weights, plain_keras
from pool_machines import lodged, machines
from test_pool_of_jobs import Together, begun

from scavenger.train.pool.connection import drain

pytestmark = pytest.mark.slow


def test_two_jobs_share_a_remote_node_one_tenant_is_killed_and_the_node_is_drained(tmp_path: Path) -> None:
    with machines(tmp_path) as pool:
        pool.add("one", price=0.36)
        pool.joined("one")
        with (
            lodged("small:exact_slow", tmp_path / "a", pool) as one,
            lodged("small:exact_slow", tmp_path / "b", pool) as other,
        ):
            together = Together([one, other], pool.folder)
            begun([one, other], together, 34)
            # the first aggregator only sequences, in the process of the job
            together.until(lambda: all(len(run.migrated) == 1 for run in (one, other)))
            assert {*one.supervisor.map.holders} == {1}
            assert [tenant.node for tenant in pool.load().tenants] == ["one", "one"]
            together.train(3)

            (victim,) = (tenant for tenant in pool.load().tenants if tenant.job_id == "a")
            os.kill(victim.pid, signal.SIGKILL)
            together.until(lambda: len(one.rolled_back) == 1)
            together.train(3)
            assert not other.rolled_back

            pool.add("two")
            pool.joined("two")
            before = {run: len(run.migrated) for run in (one, other)}
            answer = drain(pool.folder, "one")
            assert answer is not None
            assert (answer.moved, answer.error) == (2, "")
            together.until(
                lambda: (
                    [tenant.node for tenant in pool.load().tenants] == ["two", "two"]
                    and all(
                        {*run.supervisor.map.holders} == {1}
                        and not run.supervisor.migrating
                        and len(run.migrated) >= before[run] + 2
                        for run in (one, other)
                    )
                )
            )
            together.train(3)

            (used,) = (job for job in pool.load().jobs if job.id == "a")
            assert used.usd > 0.0
            weights = [run.finish() for run in (one, other)]

    assert len(one.rolled_back) == 1
    assert not other.rolled_back
    for run, got in zip((one, other), weights, strict=True):
        assert_same_weights(got, plain_keras("exact_slow", run.steps), 1e-9)
