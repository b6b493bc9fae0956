"""Jobs share aggregator nodes on other machines, which are drained by migration while they train."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from driving import Run, assert_same_weights, plain_keras
from pool_machines import Machines, lodged, machines
from test_pool_of_jobs import Together, begun

from scavenger.train.pool.connection import drain

pytestmark = pytest.mark.slow


def holders(run: Run) -> set[int]:
    assert run.supervisor.migrations.map is not None
    return {*run.supervisor.migrations.map.holders}


def nodes(pool: Machines) -> list[str]:
    return [tenant.node for tenant in pool.load().tenants]


def drained(pool: Machines, runs: Sequence[Run], together: Together) -> None:
    """Have another machine join, and the tenants of the first one leave it for the other."""
    pool.add("two")
    pool.joined("two")
    before = {run: len(run.migrated) for run in runs}
    answer = drain(pool.folder, "one")
    assert answer is not None
    assert (answer.moved, answer.later, answer.error) == (len(runs), True, "")
    together.until(lambda: nodes(pool) == ["two"] * len(runs))
    # what each tenant held goes to the first aggregator, and from there to the next tenant
    together.until(lambda: all(len(run.migrated) >= before[run] + 2 for run in runs))
    assert [holders(run) for run in runs] == [{1}] * len(runs)


def test_a_job_leaves_a_drained_machine_while_it_trains(tmp_path: Path) -> None:
    with machines(tmp_path) as pool:
        pool.add("one", price=0.36)
        pool.joined("one")
        with lodged("small:exact_slow", tmp_path / "a", pool) as run:
            together = Together([run], pool.folder)
            begun([run], together, 34)
            # the first aggregator only sequences, in the process of the job
            together.until(lambda: len(run.migrated) == 1)
            assert (holders(run), nodes(pool)) == ({1}, ["one"])
            together.train(3)

            drained(pool, [run], together)

            together.train(3)
            (used,) = pool.load().jobs
            assert used.usd is not None
            assert used.usd > 0.0
            got = run.finish()

    assert not run.rolled_back
    assert_same_weights(got, plain_keras("exact_slow", run.steps), 1e-9)


@pytest.mark.long
def test_two_jobs_share_a_machine_one_tenant_is_killed_and_the_machine_is_drained(tmp_path: Path) -> None:
    with machines(tmp_path) as pool, ExitStack() as stack:
        pool.add("one")
        pool.joined("one")
        runs = [stack.enter_context(lodged("small:exact_slow", tmp_path / name, pool)) for name in ("a", "b")]
        together = Together(runs, pool.folder)
        begun(runs, together, 34)
        together.until(lambda: all(len(run.migrated) == 1 for run in runs))
        assert nodes(pool) == ["one", "one"]
        together.train(3)

        (victim,) = (tenant for tenant in pool.load().tenants if tenant.job_id == "a")
        os.kill(victim.pid, signal.SIGKILL)
        together.until(lambda: len(runs[0].rolled_back) == 1)
        together.train(3)

        drained(pool, runs, together)

        together.train(3)
        weights = [run.finish() for run in runs]

    assert [len(run.rolled_back) for run in runs] == [1, 0]
    for run, got in zip(runs, weights, strict=True):
        assert_same_weights(got, plain_keras("exact_slow", run.steps), 1e-9)


@pytest.mark.long
def test_jobs_that_were_measured_on_machines_of_their_own_are_packed_onto_one(tmp_path: Path) -> None:
    with machines(tmp_path) as pool, ExitStack() as stack:
        for name in ("one", "two"):
            pool.add(name)
        pool.joined("one", "two")
        runs = [stack.enter_context(lodged("small:exact_slow", tmp_path / name, pool)) for name in ("a", "b")]
        together = Together(runs, pool.folder)
        begun(runs, together, 34)
        together.until(lambda: sorted(nodes(pool)) == ["one", "two"])
        together.until(lambda: all(len(run.migrated) == 1 for run in runs))

        # the tenant that moves gives its share to the first aggregator, and another gets it back on the other machine
        together.until(lambda: len(nodes(pool)) == 2 and len(set(nodes(pool))) == 1)
        together.until(lambda: max(len(run.migrated) for run in runs) >= 3)
        together.train(3)
        packed = [change.what for change in pool.load().changes]
        weights = [run.finish() for run in runs]

    assert any(" moved to " in what for what in packed)
    for run, got in zip(runs, weights, strict=True):
        assert not run.rolled_back

        assert_same_weights(got, plain_keras("exact_slow", run.steps), 1e-9)
