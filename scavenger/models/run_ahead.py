"""What is left of a run from now on: its time and cost, with everything that is not known of it.

=========  ==================================================================================================
f          epochs to the target over those predicted: log-normal, and more than the share p that is trained
m          the most that f can be: the run ends there by its bound on the epochs
s          time of a step in the run over that predicted: log-normal
F, S       when the first workers are ready; when the missing ones are, which start meanwhile
P          pause of training by the change to the chosen configuration
T, T'      time of the whole training at the chosen configuration, and at the present one meanwhile
=========  ==================================================================================================

    time = F + left T' s                                        if the run ends before the missing workers are ready
           max(F, S) + P + (left - (max(F, S) - F) / (T' s)) T s    else;   left = min(f, m) - p

and the end after that. What a job pays for until its processes end, it pays for a part of the end: any, as they end
somewhere in it.

Neither the start of a worker nor what is trained meanwhile is certain, and that p of the way is behind makes f no more
certain: what is left is f - p, so its relative uncertainty grows towards the end. The distribution is averaged over
points that fill it evenly, so it needs no chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from scavenger.domain.curve import FloatArray
from scavenger.models.even_points import even_points
from scavenger.models.starts import Lasting

POINTS = 2048
"""Points of the distribution: its quantiles are then within a hundredth of what more points give."""

INTERVAL = (0.05, 0.95)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is left of a run.

    Attributes:
        share: Epochs of the whole run over those predicted, the median: 1, unless more are behind already.
        start_s, start_usd: Time and cost until the workers of the chosen configuration train.
        remaining: Share of the training that is left then, in [0, 1].
        time_s, cost_usd: All of it, the start included; the median.
        time_interval_s, cost_interval_usd: 90 % intervals.
    """

    share: float
    start_s: float
    start_usd: float
    remaining: float
    time_s: float
    time_interval_s: tuple[float, float]
    cost_usd: float
    cost_interval_usd: tuple[float, float]


@dataclass(frozen=True, slots=True)
class RunAhead:
    """A run from now on.

    Attributes:
        whole: T s.
        meanwhile_s: T', seconds; infinite where nothing is trained while workers start.
        usd_per_s, start_usd_per_s: Cost of a second of training at the chosen configuration, and of its start.
        behind: p, at least 0.
        share_max: m, more than `behind`.
        epochs_log_sd: Standard deviation of ln f.
        first: Start of the first workers from their launch, and the seconds since then; None if some are ready.
        missing: Start of the missing workers from now on; None if none is missing.
        end: The time after the training.
        end_paid: Whether what the job runs on is paid for until then, and not until its processes end.
        stall: Pause of training by the change to the chosen configuration; None if it is known of none.
    """

    whole: Lasting
    meanwhile_s: float
    usd_per_s: float
    start_usd_per_s: float
    behind: float
    share_max: float
    epochs_log_sd: float
    first: tuple[Lasting, float] | None
    missing: Lasting | None
    end: Lasting
    end_paid: bool
    stall: Lasting | None = None

    def predict(self) -> Ahead:
        """The median and the 90 % interval."""
        unknown = 5 + (not self.end_paid) + (self.stall is not None)
        middle = np.full((1, unknown), 0.5)
        share, start_s, left, times_s, usd = self._ends(middle)
        _, _, _, of_all_s, of_all_usd = self._ends(even_points(POINTS, unknown))
        time_s, cost_usd = float(times_s[0]), float(usd[0])
        low_s, high_s = np.quantile(of_all_s, INTERVAL)
        low_usd, high_usd = np.quantile(of_all_usd, INTERVAL)
        return Ahead(
            share=float(share[0]),
            start_s=float(start_s[0]),
            start_usd=float(start_s[0]) * self.start_usd_per_s,
            remaining=float(left[0] / share[0]),
            time_s=time_s,
            time_interval_s=(min(float(low_s), time_s), max(float(high_s), time_s)),
            cost_usd=cost_usd,
            cost_interval_usd=(min(float(low_usd), cost_usd), max(float(high_usd), cost_usd)),
        )

    def _ends(
        self, quantiles: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        """f, start, share left after it, whole time and cost at quantiles of what is unknown, shape `(n, 5 to 7)`."""
        of_epochs, of_steps, of_first, of_missing, of_end = quantiles.T[:5]
        share = np.minimum(self._shares(of_epochs), self.share_max)
        slow = np.exp(self.whole.log_sd * ndtri(of_steps))
        ready_s = np.zeros(len(share)) if self.first is None else _rest(*self.first, of_first)
        start_s = (
            ready_s if self.missing is None else np.maximum(ready_s, _rest(self.missing, 0.0, of_missing))
        )
        pause_s = 0.0 if self.stall is None else _rest(self.stall, 0.0, quantiles.T[-1])
        of_paid = 1.0 if self.end_paid else quantiles.T[5]
        left = share - self.behind
        trained = (start_s - ready_s) / (self.meanwhile_s * slow)
        over = left <= trained
        started_s = np.where(
            over, ready_s + np.where(over, left, 0.0) * _finite(self.meanwhile_s) * slow, start_s + pause_s
        )
        remaining = np.where(over, 0.0, left - trained)
        training_s = remaining * self.whole.median_s * slow
        end_s = _rest(self.end, 0.0, of_end)
        usd = started_s * self.start_usd_per_s + (training_s + of_paid * end_s) * self.usd_per_s
        return share, started_s, remaining, started_s + training_s + end_s, usd

    def _shares(self, quantiles: FloatArray) -> FloatArray:
        """f at its quantiles, given that it is more than what is behind."""
        if self.epochs_log_sd <= 0.0:
            return np.full(len(quantiles), max(1.0, self.behind))
        if self.behind <= 0.0:
            return np.asarray(np.exp(self.epochs_log_sd * ndtri(quantiles)))
        more = float(ndtr(-math.log(self.behind) / self.epochs_log_sd))
        # Far beyond all that was thought possible, the tail's quantiles underflow: nothing is known but that it ends.
        tail = np.maximum((1.0 - quantiles) * more, np.finfo(np.float64).tiny)
        return np.asarray(np.maximum(np.exp(-self.epochs_log_sd * ndtri(tail)), self.behind))


def _rest(lasting: Lasting, waited_s: float, quantiles: FloatArray) -> FloatArray:
    """What is left, at its quantiles, of a time that has lasted for `waited_s`, seconds."""
    if waited_s <= 0.0:
        return np.asarray(lasting.median_s * np.exp(lasting.log_sd * ndtri(quantiles)))
    more = float(ndtr(-math.log(waited_s / lasting.median_s) / lasting.log_sd))
    tail = np.maximum((1.0 - quantiles) * more, np.finfo(np.float64).tiny)
    return np.asarray(np.maximum(lasting.median_s * np.exp(-lasting.log_sd * ndtri(tail)) - waited_s, 0.0))


def _finite(value: float) -> float:
    """0 in place of infinity, which is never reached."""
    return value if math.isfinite(value) else 0.0
