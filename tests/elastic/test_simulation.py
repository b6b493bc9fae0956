"""The protocol under chaos: every law holds on every schedule, and known ways to break it are caught."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation import ViolationError, World

from scavenger.elastic.barrier import (
    Announce,
    Barrier,
    Contribution,
    Evaluated,
    Instruction,
    Phase,
    Refuse,
    Summed,
)
from scavenger.elastic.membership import Membership, WorkerState

SEEDS = 600


def test_every_sample_is_counted_once_and_nothing_hangs_whatever_happens_when() -> None:
    losses = views = steps = 0
    for seed in range(SEEDS):
        world = World(seed)
        world.run()
        losses += world.losses
        views += len(world.installed)
        steps += len(world.covered)

    # a simulation in which nothing happens would prove nothing
    assert losses > 2 * SEEDS
    assert views > 5 * SEEDS
    assert steps > 10 * SEEDS


def test_a_job_all_of_whose_workers_died_goes_on_with_a_new_one() -> None:
    for seed in range(SEEDS // 3):
        World(seed, kill_all=True).run()


class NothingIsUrgent(Barrier):
    def _announce(self, event: Announce) -> list[Instruction]:
        return super()._announce(replace(event, urgent=False))


class LateIsWelcome(Barrier):
    def _refusal(self, event: Contribution | Evaluated | Summed, phase: Phase, step: int) -> Refuse | None:
        if self.phase is phase and event.worker in self.missing:
            return None
        return super()._refusal(event, phase, step)


class LeaversAreForgotten(Membership):
    """Takes a worker in standby for one that nobody waits for, though the view without it is to come."""

    def lost(self, worker: str) -> Announce | None:
        if self.state(worker) is WorkerState.STANDBY:
            self._workers[worker].state = WorkerState.GONE
            return None
        return super().lost(worker)


class StrandedViewsWait(Membership):
    """Does not remember that the view in effect has no living member."""

    def _announce(self, *, urgent: bool, reason: str) -> Announce | None:
        self._stranded = False
        return super()._announce(urgent=urgent, reason=reason)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"barrier": NothingIsUrgent}, id="urgent views wait"),
        pytest.param({"barrier": LateIsWelcome}, id="late contributions are counted"),
        pytest.param({"membership": LeaversAreForgotten}, id="leavers are not waited for"),
        pytest.param({"membership": StrandedViewsWait, "kill_all": True}, id="a stranded view is not urgent"),
        pytest.param({"empty_at_once": True}, id="a dead worker's gradient is thrown away while it is read"),
    ],
)
def test_the_simulation_catches_a_broken_protocol(broken: dict[str, object]) -> None:
    def run() -> None:
        for seed in range(SEEDS):
            World(seed, **broken).run()  # type: ignore[arg-type]

    with pytest.raises(ViolationError):
        run()
