"""The step in progress at the sequencer: which values end the job."""

from __future__ import annotations

import math

import pytest

from scavenger.elastic.migration import BucketMap
from scavenger.elastic.steps import Apply
from scavenger.elastic.view import Member, Piece, Position, Share, View, plan_step
from scavenger.train.aggregation.step_in_progress import StepInProgress
from scavenger.train.transport.messages.data import Contributed, PartApplied, SumsFormed

VIEW = View(1, 1, 4, (Member("w0", 0), Member("w1", 64)), Position())
PIECES = (Piece(0, Share(0, 2), "w0", 0), Piece(1, Share(2, 4), "w1", 64))


@pytest.mark.parametrize(
    ("loss", "applied", "plain", "scaled"),
    [
        (0.5, True, "", ""),
        (math.nan, True, "the loss became nan at step 1, epoch 1 (on w1)", ""),
        (0.5, False, "the gradient became nan at step 1, epoch 1", "the gradient became nan"),
        (math.inf, False, "the loss became inf", "the loss became inf"),
    ],
)
def test_where_the_loss_is_scaled_it_need_not_be_finite_if_the_aggregators_could_go_on(
    loss: float, applied: bool, plain: str, scaled: str
) -> None:
    instruction = Apply(plan_step(VIEW, 1, 8), VIEW, PIECES, (0,), 0, BucketMap(0, 0, (0,)))
    step = StepInProgress()
    for piece, each in zip(PIECES, (0.25, loss), strict=True):
        step.contributed(Contributed(1, 1, piece.number, 2, (), 0.1, 0.0, each, 0.0))
    step.begin_apply(instruction, lr_scale=1.0)
    step.applied(PartApplied(0, 1, applied, 0.0, 0.0, view=1))

    for scales_loss, words in ((False, plain), (True, scaled)):
        found = step.not_finite(instruction, scales_loss=scales_loss)
        assert found.startswith(words)
        assert bool(found) == bool(words)


@pytest.mark.parametrize("sqnorm", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_known_before_it_is_applied(sqnorm: float) -> None:
    instruction = Apply(plan_step(VIEW, 1, 8), VIEW, PIECES, (0,), 0, BucketMap(0, 0, (0,)))
    step = StepInProgress()
    for piece, each in zip(PIECES, (1.0, sqnorm), strict=True):
        step.contributed(Contributed(1, 1, piece.number, 2, (), 0.1, 0.0, 0.5, 0.0, sqnorm=each))

    assert step.not_finite(instruction) == "the gradient became nan at step 1, epoch 1"
    assert step.not_finite(instruction, scales_loss=True) == ""


@pytest.mark.parametrize(
    ("samples", "worker_sqnorm", "parts"), [((3, 1), 2.5, 2), ((4, 0), 0.5, 2), ((0, 0), 0.0, 0)]
)
def test_norms_for_the_noise_are_those_that_workers_sent_weighed_by_samples(
    samples: tuple[int, int], worker_sqnorm: float, parts: int
) -> None:
    step = StepInProgress()
    for piece, count, sqnorm in zip(PIECES, samples, (2.0, 4.0), strict=True):
        step.contributed(Contributed(1, 1, piece.number, count, (), 0.1, 0.0, 0.5, 0.5, sqnorm=sqnorm))
    instruction = Apply(plan_step(VIEW, 1, 8), VIEW, PIECES, (0, 1), 0, BucketMap(0, 0, (0, 1)))
    step.begin_apply(instruction, lr_scale=1.0)
    for index in (0, 1):
        step.applied(PartApplied(index, 1, True, 0.75 if any(samples) else 0.0, 0.0, view=1))

    report = step.report(instruction, 1.0)

    assert (report.mean_worker_sqnorm, report.noise_parts) == (worker_sqnorm, parts)
    assert report.mean_sqnorm == (1.5 if any(samples) else 0.0)


def test_a_step_says_what_it_has_waited_for_each_aggregator_that_holds_something() -> None:
    now = [10.0]
    instruction = Apply(plan_step(VIEW, 1, 8), VIEW, PIECES, (0, 1, 2), 0, BucketMap(0, 0, (0, 2, 0)))
    step = StepInProgress(clock=lambda: now[0])

    def contributed(place: int, at_s: float, pulled: tuple[tuple[int, float], ...]) -> None:
        now[0] = at_s
        said = Contributed(1, 1, PIECES[place].number, 2, (), 0.1, 0.0, 0.5, 0.0, pulled_s=pulled)
        step.contributed(said)

    def formed(index: int, at_s: float) -> None:
        now[0] = at_s
        step.formed(SumsFormed(index, 1, 1, 0))

    contributed(0, 10.0, ((0, 0.25), (2, 0.5)))
    formed(0, 10.5)  # it had added all that had come before
    contributed(1, 11.0, ((0, 0.5),))
    formed(1, 11.0)
    formed(2, 13.0)
    formed(2, 14.0)  # as it was asked again
    contributed(1, 15.0, ((0, 0.5),))  # said again
    step.begin_apply(instruction, lr_scale=1.0)
    for index in range(3):
        step.applied(PartApplied(index, 1, True, 1.0, 0.125 * (1 + index), view=1))

    assert step.report(instruction, 5.0).aggregator_wait_s == ((0, 0.0 + 0.125 + 0.5), (2, 2.0 + 0.375 + 0.5))

    step.close()
    contributed(0, 16.0, ())
    contributed(1, 16.0, ())
    step.begin_apply(instruction, lr_scale=1.0)
    for index in range(3):
        step.applied(PartApplied(index, 1, True, 1.0, 0.125, view=1))
    assert step.report(instruction, 5.0).aggregator_wait_s == (), "no sums arrived: all is in one memory"
