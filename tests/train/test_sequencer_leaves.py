"""The process that sequences a job's steps is asked to leave its host: it goes once a checkpoint has been written."""

from __future__ import annotations

from pathlib import Path

import pytest
from driving import FaultyEngine, Run, assert_same_weights, plain_keras

from scavenger.train.engines.base import PreemptionNotice
from scavenger.train.names import aggregator_name
from scavenger.train.transport import messages as m

pytestmark = pytest.mark.slow

SEQUENCER, OTHER = aggregator_name(0), aggregator_name(1)


class PooledHosts(FaultyEngine):
    """Its aggregators are on hosts of others, as tenants of a pool are."""

    def __init__(self, log_dir: Path, memory_fd: int) -> None:
        super().__init__(log_dir, memory_fd, faults=(), remote=(SEQUENCER, OTHER))
        self.notices: list[PreemptionNotice] = []
        self.left: list[str] = []

    def preemption_notices(self) -> tuple[PreemptionNotice, ...]:
        found, self.notices = tuple(self.notices), []
        return found

    def vacated(self, name: str) -> None:
        self.left.append(name)
        self.kill(name)


def test_the_sequencer_leaves_right_after_a_checkpoint_and_few_steps_are_repeated(tmp_path: Path) -> None:
    plan = m.CheckpointPlan(str(tmp_path / "checkpoints"), 0.0, 12)
    with Run(
        "small:exact_slow", tmp_path, aggregators=1, apart=True, checkpoint=plan, engine=PooledHosts
    ) as run:
        engine = run.supervisor.engine
        assert isinstance(engine, PooledHosts)
        run.begin(1, 34)
        run.until(lambda: len(run.checkpoints) == 1)
        asked = PreemptionNotice(SEQUENCER, 3600.0, "leaves the drained aggregator node one", alone=True)
        engine.notices += [asked, asked]
        run.train(2)
        assert engine.left == [], "not before there is a checkpoint to go back to"

        run.until(lambda: len(run.rolled_back) == 1)

        assert engine.left == [SEQUENCER]
        (back,) = run.rolled_back
        assert back.step == run.checkpoints[1].step
        run.until(lambda: len(run.checkpoints) >= 3)
        assert engine.left == [SEQUENCER], "it was asked once"
        got = run.finish()

    assert_same_weights(got, plain_keras("exact_slow", run.steps), 1e-9)
