"""Search over hyperparameters by dollars: which trial to begin, and which to stop.

==========  ====================================================  ==============================================
f           final value of a trial; smaller is better             what it reaches at its last epoch
f*          the best of the complete trials
p           probability that a trial's f is below f*              from the course of its metric, `outlook`
r           dollars until it knows more, or is complete           from the time-cost curve of its job
n, c        trials so far, and their mean cost
==========  ====================================================  ==============================================

One rule decides about both. A dollar is spent where it is likeliest to give a new best: a trial goes on while `p / r`,
times a patience, is not below what a dollar in new trials gives, `1 / ((n + 1) c)`, as one of n + 1 equal trials is the
best with that probability. It is looked at when its spending has grown by a share, not after a number of epochs: so a
trial with dear epochs has as many looks as one with cheap epochs, and none that could not save more than the start of
another. That is successive halving [1]_ with rungs in dollars, and a forecast in place of the value of the moment.
New trials are chosen by expected improvement per dollar [2]_, where stopped ones count with their forecasts.

References:
    .. [1] Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020.
    .. [2] Snoek, Larochelle and Adams, "Practical Bayesian Optimization of Machine Learning Algorithms", NeurIPS 2012.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtr

from scavenger.domain.curve import FloatArray
from scavenger.models.final_value import further_fall
from scavenger.models.surrogate import Surrogate

Mode = Literal["min", "max"]

GROWTH = 1.4
"""A trial is looked at when it has spent so many times what it had at the look before."""

PRIOR_TRIALS = 2.0
"""Complete trials that what is assumed of the errors of forecasts counts for."""

PATIENCE = 3.0
"""How much better a dollar in new trials must be for a trial to be stopped."""

FALL_SD, SCATTER_SD = 1.0, 0.5
"""Standard deviation of a final value: relative to the fall that is expected, and to the spread of finals at the
beginning of a trial."""

TRIALS_MAX = 160
"""Trials that a proposal is made from; of more, the newest and the best."""


@dataclass(frozen=True, slots=True)
class SearchTrial:
    """A trial so far.

    Attributes:
        at: Its hyperparameters, each scaled to [0, 1].
        epochs: Epochs at its evaluations, increasing.
        values: The metric there.
        epochs_max: Its last epoch.
        spent_usd: What it has cost.
        rest_usd: What it will cost from here to its last epoch.
        complete: Whether it has reached its end, so its best value counts.
    """

    at: tuple[float, ...]
    epochs: tuple[int, ...]
    values: tuple[float, ...]
    epochs_max: int
    spent_usd: float
    rest_usd: float
    complete: bool = False


class BestValueForecast(NamedTuple):
    """What a trial's best value will be at its end; smaller is better."""

    mean: float
    sd: float

    def chance_below(self, value: float) -> float:
        """Probability that it is below a value."""
        return float(ndtr((value - self.mean) / self.sd)) if self.sd > 0.0 else float(self.mean < value)


@dataclass(frozen=True, slots=True)
class TrialDecision:
    """Whether a trial goes on, and why."""

    goes_on: bool
    reason: str


def is_look(spent_usd: Sequence[float]) -> bool:
    """Whether a trial is looked at now: its spending has grown enough since the last look.

    Args:
        spent_usd: What it had cost after each evaluation, and has now. The first is the first look.
    """
    last = math.nan
    looked = False
    for spent in spent_usd:
        looked = not spent < last * GROWTH
        last = spent if looked else last
    return looked


def outlook(
    trial: SearchTrial, mode: Mode, spread: float, complete: Sequence[SearchTrial] = ()
) -> BestValueForecast:
    """Forecast of a trial's final value, on the scale where smaller is better.

    Args:
        trial: With at least one evaluation.
        spread: Of the final values of other trials; 0 if unknown.
        complete: Trials whose errors, had they been forecast at the same share of their epochs, correct the forecast
            and its deviation.
    """
    losses = _losses(trial, mode)
    if not any(map(math.isfinite, losses)):
        return BestValueForecast(math.inf, 0.0)
    best = min(losses)
    if trial.complete:
        return BestValueForecast(best, 0.0)
    share = trial.epochs[-1] / trial.epochs_max
    fall = further_fall(trial.epochs, losses, trial.epochs_max)
    variance = (FALL_SD * fall) ** 2 + (SCATTER_SD * spread * (1.0 - share)) ** 2
    errors = [_error(one, mode, share) for one in complete]
    correction = sum(errors) / (len(errors) + PRIOR_TRIALS)
    variance = (PRIOR_TRIALS * variance + sum((error - correction) ** 2 for error in errors)) / (
        len(errors) + PRIOR_TRIALS
    )
    return BestValueForecast(best - max(0.0, fall + correction), math.sqrt(variance))


def _losses(trial: SearchTrial, mode: Mode) -> list[float]:
    """The metric where smaller is better; infinite where it is no number."""
    sign = 1.0 if mode == "min" else -1.0
    return [sign * value if math.isfinite(value) else math.inf for value in trial.values]


def _error(trial: SearchTrial, mode: Mode, share: float) -> float:
    """By how much more a complete trial fell, from this share of its epochs on, than `further_fall` says."""
    losses = _losses(trial, mode)
    seen = max(1, sum(epoch <= share * trial.epochs_max + 1e-9 for epoch in trial.epochs))
    start, end = min(losses[:seen]), min(losses)
    if not math.isfinite(start):
        return 0.0
    return start - end - further_fall(trial.epochs[:seen], losses[:seen], trial.epochs_max)


def decide_trial(trial: SearchTrial, others: Sequence[SearchTrial], mode: Mode) -> TrialDecision:
    """Whether the rest of a running trial is worth its dollars.

    Args:
        trial: At a look, see `is_look`.
        others: The other trials of the search, running ones included.
    """
    known = [one for one in others if one.complete]
    if not known:
        return TrialDecision(True, "no trial is complete yet")
    finals = np.array([outlook(one, mode, 0.0).mean for one in known])
    best, spread = float(finals.min()), spread_of(finals)
    ahead = outlook(trial, mode, spread, known)
    if not math.isfinite(ahead.mean):
        return TrialDecision(False, "its metric is not a number")
    if len(trial.epochs) < 2:
        return TrialDecision(True, "one evaluation tells too little")
    chance = ahead.chance_below(best)
    mean_usd = math.fsum(one.spent_usd for one in others) / len(others)
    fresh = 1.0 / (len(others) + 1)
    next_usd = min(trial.rest_usd, (GROWTH - 1.0) * trial.spent_usd)
    rest_usd = next_usd + min(1.0, 2.0 * chance) * (trial.rest_usd - next_usd)
    goes_on = chance * mean_usd * PATIENCE >= fresh * rest_usd
    return TrialDecision(
        goes_on,
        f"{100.0 * chance:.0f} % to be the best for {rest_usd:.3g} US dollars more, where a new trial has "
        f"{100.0 * fresh:.0f} % for {mean_usd:.3g}",
    )


def spread_of(finals: FloatArray) -> float:
    """Spread of the better half of final values; 0 of fewer than two."""
    finite = np.sort(finals[np.isfinite(finals)])
    if len(finite) < 2:
        return 0.0
    return float(np.median(finite) - finite[0])


def propose(
    candidates: FloatArray,
    trials: Sequence[SearchTrial],
    mode: Mode,
    *,
    cost_power: float = 1.0,
) -> int:
    """Which of several candidates to begin: the one of most expected improvement per dollar.

    Args:
        candidates: Hyperparameters, each scaled to [0, 1], shape `(m, d)`.
        trials: Those so far, with an evaluation each; at least one is complete.
        cost_power: 0 leaves the dollars out.

    Returns:
        Its row.
    """
    finals = np.array([outlook(one, mode, 0.0).mean for one in trials if one.complete])
    spread = spread_of(finals)
    seen = [(one, outlook(one, mode, spread)) for one in trials]
    seen = [(one, look) for one, look in seen if math.isfinite(look.mean)]
    if len(seen) > TRIALS_MAX:
        newest = seen[-TRIALS_MAX // 2 :]
        seen = (
            sorted(seen[: -len(newest)], key=lambda pair: pair[1].mean)[: TRIALS_MAX - len(newest)] + newest
        )
    x = np.array([one.at for one, _ in seen])
    means, sds = (np.array([look[part] for _, look in seen]) for part in (0, 1))
    best = float(finals.min())
    far = best + 2.0 * max(float(np.median(means)) - best, 1e-12)
    value = Surrogate(x, np.minimum(means, far), np.minimum(sds, far - best))
    mean, sd = value.predict(candidates)
    gap = (best - mean) / sd
    gain = sd * (gap * ndtr(gap) + np.exp(-0.5 * gap**2) / math.sqrt(2.0 * math.pi))
    whole_usd = np.array([one.spent_usd + one.rest_usd for one, _ in seen])
    log_usd, _ = Surrogate.exact(x, np.log(np.maximum(whole_usd, 1e-12))).predict(candidates)
    return int(np.argmax(np.log(np.maximum(gain, 1e-300)) - cost_power * log_usd))
