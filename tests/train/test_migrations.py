"""Buckets move between the aggregators of a job while it trains, and the weights are those of plain Keras."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import Run, assert_same_weights, plain_keras

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("remote", [(), ("w1",)])
def test_an_aggregator_is_drained_and_filled_again_while_it_trains(
    tmp_path: Path, remote: tuple[str, ...]
) -> None:
    """Whether all workers share the aggregators' memory, or sums are formed on arrival."""
    with Run("small:momentum", tmp_path, aggregators=3, remote=remote) as run:
        run.begin(2, 20)
        run.train(3)
        before = run.supervisor.map
        assert before is not None
        run.supervisor.drain(2)
        run.until(lambda: len(run.migrated) == 1)
        run.train(3)
        assert run.supervisor.map is not None
        assert set(run.supervisor.map.holders) == {0, 1}
        run.supervisor.migrate(dict(enumerate(before.holders)))
        run.until(lambda: len(run.migrated) == 2)
        assert run.supervisor.map.holders == before.holders
        run.train(3)
        got = run.finish()

    assert [end.reason for end in run.migrated] == ["", ""]
    assert_same_weights(got, plain_keras("momentum", run.steps))
