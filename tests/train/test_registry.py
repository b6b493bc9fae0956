"""The process registry: one entry per process, and what follows from its status."""

from __future__ import annotations

from typing import cast

import pytest
from stubs import StubEngine

from scavenger.elastic.recovery import Role, Status
from scavenger.train.engines.base import Engine
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.transport import messages as m


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(clock: Clock) -> ProcessRegistry:
    """A coordinator, an aggregator and three workers, of which the last is on another type of VM."""
    made = ProcessRegistry(cast(Engine, StubEngine()), clock)
    made.launched("coordinator-1", Role.COORDINATOR)
    made.launched("aggregator-0", Role.AGGREGATOR)
    for name, vm in (("w0", "small"), ("w1", "small"), ("w2", "large")):
        made.launched(name, Role.WORKER, vm=vm)
    return made


def states(registry: ProcessRegistry) -> dict[str, str]:
    return {process.name: process.state for process in registry.processes()}


def test_workers_stay_until_they_are_asked_to_leave_let_go_expelled_or_ended(
    registry: ProcessRegistry,
) -> None:
    assert registry.alive == ("w0", "w1", "w2")
    registry.ask_to_leave(["w0", "one that never was"])
    assert registry.departing == ("w0",)
    assert registry.leaving("w0")
    assert not registry.leaving("w0"), "it is released once"
    registry.expel("w1", "was silent")
    registry.ended("w2", "was killed by SIGKILL")

    assert registry.alive == registry.departing == ()
    assert [worker.name for worker in registry.let_go] == ["w0"]
    assert not registry.leaving("w2"), "it has ended"


@pytest.mark.parametrize(
    ("before", "meant", "state", "cause"),
    [
        (Status.READY, False, "lost", "was killed"),
        (Status.READY, True, "gone", ""),
        (Status.LEAVING, False, "gone", ""),
        (Status.EXPELLED, False, "lost", "was killed"),
        (Status.FAILED, False, "failed", "was killed"),
        (Status.FAILED, True, "failed", "was killed"),
    ],
)
def test_how_a_process_ended_follows_from_its_status(
    registry: ProcessRegistry, before: Status, meant: bool, state: str, cause: str
) -> None:
    registry["w0"].status = before
    registry.ended("w0", "was killed", expected=meant)

    assert states(registry)["w0"] == state
    assert registry["w0"].cause == cause


def test_why_one_was_expelled_is_shown_rather_than_the_signal_that_ended_it(
    registry: ProcessRegistry,
) -> None:
    registry.expel("w0", "was silent")
    registry.ended("w0", "was killed by SIGKILL")

    assert registry["w0"].cause == "was silent"


def test_what_is_paid_for_is_what_has_not_ended_and_time_ends_with_the_process(
    registry: ProcessRegistry, clock: Clock
) -> None:
    clock.now_s += 10.0
    registry.leaving("w0")
    assert registry.existing == {"small": 2, "large": 1}, "it is paid for until it has ended"
    registry.ended("w0", "")
    clock.now_s += 5.0

    assert registry.existing == {"small": 1, "large": 1}
    assert registry.worker_seconds() == {"small": 10.0 + 15.0, "large": 15.0}


def test_the_newest_coordinator_comes_first_and_a_restarted_aggregator_keeps_its_place(
    registry: ProcessRegistry,
) -> None:
    registry.beat("aggregator-0", m.Beat(step=7, view=2))
    registry.expel("coordinator-1", "was silent")
    registry.launched("coordinator-2", Role.COORDINATOR)
    names = [process.name for process in registry.processes()]

    assert names == ["coordinator-2", "coordinator-1", "aggregator-0", "w0", "w1", "w2"]
    assert (registry.processes()[0].step, registry.processes()[0].view) == (7, 2), "as the sequencer reports"
    registry.ended("aggregator-0", "was killed")
    registry.launched("aggregator-0", Role.AGGREGATOR)
    assert [process.name for process in registry.processes()] == names
    assert states(registry)["aggregator-0"] == "training"
    assert registry["aggregator-0"].cause == ""


def test_the_view_number_of_a_process_never_shrinks(registry: ProcessRegistry) -> None:
    registry.beat("w0", m.Beat(step=3, view=4))
    registry.beat("w0", m.Beat(step=4, view=0))
    registry.beat("nobody", m.Beat(step=1, view=1))

    assert registry["w0"].beat == m.Beat(step=4, view=4)
