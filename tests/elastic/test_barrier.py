"""The aggregator's state machine, event by event."""

from __future__ import annotations

import pytest

from scavenger.elastic.barrier import (
    Announce,
    Applied,
    Apply,
    Barrier,
    Contribution,
    Evaluated,
    Halt,
    Installed,
    Instruction,
    Phase,
    Proceed,
    Refuse,
    Report,
    Sum,
    Summed,
    Verdict,
)
from scavenger.elastic.view import Member


def announce(number: int, *workers: int, batch: int = 4, urgent: bool = False) -> Announce:
    return Announce(number, tuple(Member(f"w{i}", i) for i in workers), batch, urgent)


def orders(instructions: list[Instruction]) -> list[tuple[str, str]]:
    return [(i.worker, i.action) for i in instructions if isinstance(i, Proceed)]


def training(*workers: int, dataset_size: int = 8, batch: int = 4) -> Barrier:
    barrier = Barrier(dataset_size)
    barrier.handle(announce(1, *workers, batch=batch))
    return barrier


def contribute(barrier: Barrier, *workers: str, step: int | None = None) -> list[Instruction]:
    assert barrier.view is not None
    follows: list[Instruction] = []
    for worker in workers:
        follows += barrier.handle(Contribution(worker, barrier.view.number, step or barrier.step + 1))
    return follows


def evaluating() -> Barrier:
    """Two workers at the end of the only step of the first epoch."""
    barrier = training(0, 1, dataset_size=4)
    contribute(barrier, "w0", "w1")
    barrier.handle(Applied(1))
    assert barrier.phase is Phase.EVALUATE
    return barrier


def test_the_first_view_takes_effect_at_once() -> None:
    barrier = Barrier(8)

    installed, *follows = barrier.handle(announce(1, 0, 1))

    assert isinstance(installed, Installed)
    assert installed.view.first_step == 1
    assert orders(follows) == [("w0", "train"), ("w1", "train")]


def test_a_step_is_applied_when_the_last_member_has_contributed() -> None:
    barrier = training(0, 1)

    assert contribute(barrier, "w0") == []
    assert barrier.missing == ("w1",)
    (apply,) = contribute(barrier, "w1")
    assert isinstance(apply, Apply)
    assert apply.plan.samples == 4


@pytest.mark.parametrize(
    "late",
    [
        Contribution("w0", view=0, step=1),
        Contribution("w0", view=1, step=2),
        Contribution("w0", view=1, step=0),
        Contribution("stranger", view=1, step=1),
        Evaluated("w0", view=1, step=1),
        Summed("w0", view=1, step=1),
    ],
)
def test_what_is_not_awaited_is_refused(late: Contribution) -> None:
    barrier = training(0, 1)

    (refusal,) = barrier.handle(late)

    assert isinstance(refusal, Refuse)
    assert barrier.missing == ("w0", "w1")


def test_a_contribution_counts_once() -> None:
    barrier = training(0, 1)
    contribute(barrier, "w0")

    (refusal,) = contribute(barrier, "w0")

    assert isinstance(refusal, Refuse)
    assert barrier.phase is Phase.STEP


def test_a_view_that_is_not_urgent_waits_for_the_step_under_way() -> None:
    barrier = training(0, 1)
    contribute(barrier, "w0")

    assert barrier.handle(announce(2, 0, 2, batch=6)) == []
    contribute(barrier, "w1")
    installed, *follows = barrier.handle(Applied(1))

    assert isinstance(installed, Installed)
    assert (installed.view.first_step, installed.view.position.consumed) == (2, 4)
    assert orders(follows) == [("w0", "train"), ("w2", "train"), ("w1", "idle")]


def test_an_urgent_view_begins_the_step_again_from_nothing() -> None:
    barrier = training(0, 1)
    contribute(barrier, "w0")

    installed, *follows = barrier.handle(announce(2, 0, urgent=True))

    assert isinstance(installed, Installed)
    assert orders(follows)[0] == ("w0", "train")
    assert barrier.missing == ("w0",)
    (refusal,) = barrier.handle(Contribution("w0", view=1, step=1))
    assert isinstance(refusal, Refuse)


def test_a_newer_view_inherits_the_urgency_of_the_one_it_replaces() -> None:
    barrier = training(0, 1, dataset_size=4)
    contribute(barrier, "w0", "w1")
    barrier.handle(announce(2, 0, urgent=True))
    barrier.handle(announce(3, 0, 2))

    follows = barrier.handle(Applied(1))

    # it must not wait behind the evaluation, which the dead member would never finish
    assert orders(follows)[:2] == [("w0", "evaluate"), ("w2", "evaluate")]


@pytest.mark.parametrize("number", [0, 1])
def test_an_older_view_is_passed_over(number: int) -> None:
    barrier = training(0, 1)

    assert barrier.handle(announce(number, 2, urgent=True)) == []
    assert barrier.missing == ("w0", "w1")


def test_an_epoch_ends_with_evaluation_summary_report_and_verdict() -> None:
    barrier = evaluating()

    assert barrier.handle(Evaluated("w0", 1, 1)) == []
    (total,) = barrier.handle(Evaluated("w1", 1, 1))
    assert isinstance(total, Sum)
    assert barrier.missing == ("w0",)
    (report,) = barrier.handle(Summed("w0", 1, 1))
    assert isinstance(report, Report)
    assert len(barrier.missing) == 0
    assert orders(barrier.handle(Verdict(stop=False))) == [("w0", "train"), ("w1", "train")]
    assert (barrier.position.epoch, barrier.position.consumed) == (1, 0)


def test_a_view_that_is_not_urgent_waits_for_the_end_of_the_evaluation() -> None:
    barrier = training(0, 1, dataset_size=4)
    contribute(barrier, "w0", "w1")
    barrier.handle(announce(2, 2))
    assert orders(barrier.handle(Applied(1))) == [("w0", "evaluate"), ("w1", "evaluate")]
    for worker in ("w0", "w1"):
        barrier.handle(Evaluated(worker, 1, 1))
    barrier.handle(Summed("w0", 1, 1))

    follows = barrier.handle(Verdict(stop=False))

    assert orders(follows) == [("w2", "train"), ("w0", "idle"), ("w1", "idle")]


@pytest.mark.parametrize("summed", [False, True])
def test_an_urgent_view_repeats_the_evaluation_but_not_the_step(summed: bool) -> None:
    barrier = evaluating()
    if summed:
        for worker in ("w0", "w1"):
            barrier.handle(Evaluated(worker, 1, 1))

    follows = barrier.handle(announce(2, 1, urgent=True))

    assert orders(follows) == [("w1", "evaluate"), ("w0", "idle")]
    assert barrier.step == 1


def test_a_verdict_stops_and_nothing_starts_it_again() -> None:
    barrier = evaluating()
    for worker in ("w0", "w1"):
        barrier.handle(Evaluated(worker, 1, 1))
    barrier.handle(Summed("w0", 1, 1))

    assert orders(barrier.handle(Verdict(stop=True))) == [("w0", "stop"), ("w1", "stop")]
    assert barrier.handle(announce(2, 0, urgent=True)) == []
    assert barrier.handle(Halt()) == []
    assert barrier.phase is Phase.STOPPED


def test_a_verdict_that_nobody_asked_for_does_nothing() -> None:
    barrier = training(0, 1)

    assert barrier.handle(Verdict(stop=True)) == []
    assert barrier.phase is Phase.STEP


def test_a_halt_does_not_wait_for_a_step_that_may_never_be_complete() -> None:
    barrier = training(0, 1)
    contribute(barrier, "w0")

    assert orders(barrier.handle(Halt())) == [("w0", "stop"), ("w1", "stop")]
    (refusal,) = contribute(barrier, "w1")
    assert isinstance(refusal, Refuse)
    assert barrier.step == 0


def test_a_halt_before_the_first_view_stops_too() -> None:
    barrier = Barrier(4)

    assert barrier.handle(Halt()) == []
    assert barrier.handle(announce(1, 0)) == []


def test_a_step_that_was_not_to_be_applied_is_an_error() -> None:
    with pytest.raises(ValueError, match="not to be applied"):
        training(0).handle(Applied(1))
    with pytest.raises(ValueError, match="at least one"):
        Barrier(0)
