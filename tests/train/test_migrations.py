"""Buckets move between the aggregators of a job while it trains, and the weights are those of plain Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from driving import FaultyEngine, Run, assert_fired, assert_same_weights, plain_keras

from scavenger.train.engines.base import PreemptionNotice

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("remote", [pytest.param((), marks=pytest.mark.long), ("w1",)])
def test_an_aggregator_is_drained_and_filled_again_while_it_trains(
    tmp_path: Path, remote: tuple[str, ...]
) -> None:
    """Whether all workers share the aggregators' memory, or sums are formed on arrival."""
    with Run("small:momentum", tmp_path, aggregators=3, remote=remote) as run:
        run.begin(2, 20)
        run.train(3)
        before = run.supervisor.migrations.map
        assert before is not None
        run.supervisor.migrations.use((0, 1))
        run.until(lambda: len(run.migrated) == 1)
        run.train(3)
        assert run.supervisor.migrations.map is not None
        assert set(run.supervisor.migrations.map.holders) == {0, 1}
        run.supervisor.migrations.move(dict(enumerate(before.holders)))
        run.until(lambda: len(run.migrated) == 2)
        assert run.supervisor.migrations.map.holders == before.holders
        run.train(3)
        got = run.finish()

    assert [end.reason for end in run.migrated] == ["", ""]
    assert_same_weights(got, plain_keras("momentum", run.steps))


class _Taken(FaultyEngine):
    """Tells on demand that the VM of the second aggregator will be taken."""

    notices: tuple[PreemptionNotice, ...] = ()

    def preemption_notices(self) -> tuple[PreemptionNotice, ...]:
        notices, self.notices = self.notices, ()
        return notices

    def host(self, name: str) -> str:
        return "192.0.2.9" if name == "aggregator-1" else super().host(name)


@pytest.mark.long
def test_an_aggregator_whose_vm_is_taken_is_emptied_before_lost_without_a_loss_and_filled_again(
    tmp_path: Path,
) -> None:
    apart = ("aggregator-1",)
    with Run(
        "small:exact",
        tmp_path,
        aggregators=2,
        engine=lambda logs, fd: _Taken(logs, fd, faults=(), remote=apart),
    ) as run:
        run.begin(2, 34)
        run.train(3)
        assert isinstance(run.engine, _Taken)
        run.engine.notices = (PreemptionNotice("aggregator-1", 120.0, "its VM will be taken"),)
        run.until(lambda: len(run.migrated) == 1)
        assert run.supervisor.migrations.map is not None
        assert {*run.supervisor.migrations.map.holders} == {0}
        run.train(3)
        run.kill("aggregator-1")
        run.train(3)
        run.until(lambda: len(run.recovered) == 1)
        run.until(lambda: len(run.migrated) == 2)
        assert {*run.supervisor.migrations.map.holders} == {0, 1}
        run.train(3)
        got = run.finish()

    assert [end.reason for end in run.migrated] == ["", ""]
    assert not run.rolled_back
    assert_same_weights(got, plain_keras("exact", run.steps), 1e-9)


def moved_about(run: Run, within_s: float = 60.0) -> list[Any]:
    """Everything moves to the second aggregator, to the first, and to where it was; the final weights."""
    run.begin(2, 34)
    run.train(2)
    before = run.supervisor.migrations.map
    assert before is not None
    for holders in ([1] * len(before.holders), [0] * len(before.holders), before.holders):
        ended = len(run.migrated)
        run.supervisor.migrations.move(dict(enumerate(holders)))
        run.until(lambda ended=ended: len(run.migrated) > ended, within_s)  # type: ignore[misc]
        run.train(2)
    assert run.supervisor.migrations.map is not None
    assert run.supervisor.migrations.map.holders == before.holders
    assert [end.reason for end in run.migrated] == [""] * 3
    return run.finish()


@pytest.mark.parametrize(
    "remote",
    [
        ("aggregator-1",),
        pytest.param(("aggregator-0", "w1"), marks=pytest.mark.long),
        pytest.param(("aggregator-0", "aggregator-1", "w0", "w1"), marks=pytest.mark.long, id="in place"),
    ],
)
def test_buckets_go_to_another_host_and_back_while_it_trains(remote: tuple[str, ...], tmp_path: Path) -> None:
    with Run("small:exact", tmp_path, aggregators=2, remote=remote) as run:
        got = moved_about(run)

    assert not run.recovered
    assert not run.rolled_back
    assert_same_weights(got, plain_keras("exact", run.steps), 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("remote", [(), ("aggregator-1",)])
@pytest.mark.parametrize("action", ["kill", "stop"])
@pytest.mark.parametrize(
    ("point", "process"),
    [
        ("aggregator.copying", "aggregator-1"),
        ("aggregator.copied_some", "aggregator-1"),
        ("aggregator.copied", "aggregator-1"),
        ("aggregator.took", "aggregator-0"),
        ("aggregator.copied", "aggregator-0"),
        ("aggregator.took", "aggregator-1"),
        ("sequencer.copying", "aggregator-0"),
        ("sequencer.adopting", "aggregator-0"),
        ("sequencer.adopted", "aggregator-0"),
    ],
)
def test_who_dies_or_stands_still_while_buckets_move_changes_nothing_but_the_time(
    point: str, process: str, action: str, remote: tuple[str, ...], tmp_path: Path
) -> None:
    if point == "aggregator.copied_some" and not remote:
        pytest.skip("nothing is copied on one host")
    fault = f"{point}/{process}:{action}@1"
    with Run("small:exact", tmp_path, aggregators=2, remote=remote, faults=[fault]) as run:
        got = moved_about(run, within_s=100.0)

    assert_fired(run, fault)
    assert len(run.recovered) + len(run.rolled_back) > 0
    assert_same_weights(got, plain_keras("exact", run.steps), 1e-9)
