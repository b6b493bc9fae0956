"""Thirty-two workers as processes of this machine, some of which die, freeze, leave and join."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from driving import Run, assert_same_weights, plain_keras

pytestmark = [pytest.mark.slow, pytest.mark.long]

K = 32
_WITHIN_S = 300.0
_WORKER_BYTES = 150_000_000
"""Private memory of a worker that the fork server has started; one of its own would take three times as much."""


@pytest.mark.parametrize(
    "remote", [(), tuple(f"w{index}" for index in range(2 * K))], ids=["shared", "apart"]
)
def test_many_workers_train_what_one_process_does_while_some_die_leave_and_join(
    remote: tuple[str, ...], tmp_path: Path
) -> None:
    with Run("small:slow", tmp_path, replace=True, remote=remote) as run:
        run.begin(K, 2 * K, within_s=_WITHIN_S)
        run.train(10)
        descriptors = psutil.Process(run.pid("aggregator-0")).num_fds()
        assert all(psutil.Process(run.pid(f"w{i}")).memory_full_info().uss < _WORKER_BYTES for i in range(K))

        for dies in ("w3", "w4", "w17"):
            run.kill(dies)
        run.freeze("w9")
        run.until(lambda: len(run.lost) == 4)
        run.train(10)
        assert run.steps[-1].workers >= K - 4
        run.until(lambda: run.supervisor.ready == K, within_s=_WITHIN_S)  # with those that replace them
        run.supervisor.resize(K, 2 * K, "all again")
        run.until(lambda: run.steps[-1].workers == K)

        run.supervisor.resize(K // 2, K, "half of them")
        run.until(lambda: run.steps[-1].workers == K // 2 and run.supervisor.settled)
        run.supervisor.release(K // 2)
        run.until(lambda: run.supervisor.ready == K // 2 and not run.supervisor.ending)
        run.train(10)
        run.supervisor.launch(4)
        run.until(lambda: run.supervisor.ready == K // 2 + 4, within_s=_WITHIN_S)
        run.supervisor.resize(K // 2 + 4, 2 * K, "and some more")
        run.until(lambda: run.steps[-1].workers == K // 2 + 4)
        run.train(10)
        # those of workers that are gone are closed at last
        run.until(lambda: psutil.Process(run.pid("aggregator-0")).num_fds() < descriptors)
        got = run.finish()

    assert {lost.worker for lost in run.lost} == {"w3", "w4", "w9", "w17"}
    assert not run.recovered
    assert not run.rolled_back
    assert_same_weights(got, plain_keras("slow", run.steps))
