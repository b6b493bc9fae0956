"""Which trials of a search go on, and with how many workers, when they share a pool of workers and a budget.

Trials that run at once are compared by what they have reached. What the budget does not pay for to the end is
stopped, the worst first, as in HyperSched [1]_; workers that become free go to the best, as in RubberBand [2]_.

References:
    .. [1] Liaw et al., "HyperSched: Dynamic Resource Reallocation for Model Development on a Deadline", 2019.
    .. [2] Misra et al., "RubberBand: Cloud-based Hyperparameter Tuning", 2021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A running trial that has been evaluated.

    Attributes:
        score: What it has reached; higher is better.
        epochs: Epochs that it has trained, at least 1.
        epochs_max: Epochs that it trains at most.
        cost_usd: What it has cost so far.
        workers_max: The most workers that it can have.
    """

    id: str
    score: float
    epochs: int
    epochs_max: int
    cost_usd: float
    workers_max: int

    @property
    def rest_usd(self) -> float:
        """What its other epochs cost, each as much as one so far."""
        return self.cost_usd / self.epochs * max(0, self.epochs_max - self.epochs)


@dataclass(frozen=True, slots=True)
class TrialsPlan:
    """What is to become of the running trials.

    Attributes:
        workers: By trial that goes on, its number of workers.
        stopped: By trial that is stopped, why.
    """

    workers: Mapping[str, int]
    stopped: Mapping[str, str]


def plan_pool(
    trials: Sequence[RunningTrial], *, workers: int, left_usd: float, unknown: int = 0
) -> TrialsPlan:
    """Divide a pool of workers among running trials, and stop those that the budget does not pay for.

    The best trial always goes on. Each that goes on has one worker at least, whatever the size of the pool.

    Args:
        trials: Those that have been evaluated.
        workers: The size of the pool.
        left_usd: What is left of the budget beyond what these trials have cost; infinite without one.
        unknown: Running trials that have not been evaluated yet; each keeps one worker.
    """
    ranked = sorted(trials, key=lambda trial: (-trial.score, trial.id))
    going: list[RunningTrial] = []
    stopped: dict[str, str] = {}
    for trial in ranked:
        if going and trial.rest_usd > left_usd:
            stopped[trial.id] = "the budget pays for the rest of better trials only"
        else:
            going.append(trial)
            left_usd -= trial.rest_usd
    spare = max(0, workers - len(going) - unknown)
    shares: dict[str, int] = {}
    for trial in going:
        more = min(spare, max(0, trial.workers_max - 1))
        shares[trial.id], spare = 1 + more, spare - more
    return TrialsPlan(shares, stopped)
