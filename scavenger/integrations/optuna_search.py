"""Optuna 5: a sampler and a pruner that spend each dollar where it is likeliest to give a better model.

The decisions are those of `scavenger.search.trials`; here, Optuna's trials become its values::

    search = optuna.create_study(sampler=CostSampler(), pruner=CostPruner())
    search.optimize(objective(study, job, suggest), n_trials=40, callbacks=[StopAtBudget(study)])

`scavenger.integrations.optuna.objective` notes what a trial has cost after each epoch. Either of the two works without
the other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from scavenger.search.trials import SearchTrial, decide_trial, is_look, propose

__all__ = ["CostPruner", "CostSampler", "note_epoch"]

log = logging.getLogger(__name__)

SPENT, LAST = "spent_usd", "epochs_max"
"""Attributes of a trial: what it had cost after each evaluation, US dollars, and its last epoch."""

STARTUP = 6
PROPOSED, DRAWN, NEAR = 4, 200, 100
"""Candidates: of TPE, drawn evenly, and around the best trials."""
NEAR_SD, BEST = 0.08, 5

_LIVE = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)


def note_epoch(trial: Trial, epoch: int, epochs_max: int, spent_usd: float) -> None:
    """Note what a trial has cost, before its metric is reported.

    Args:
        trial: Of Optuna.
        epoch: As in `optuna.Trial.report`: 1 after the first epoch.
        epochs_max: Its last epoch.
        spent_usd: What it has cost up to now.
    """
    spent = dict(trial.user_attrs.get(SPENT, {}))
    spent[str(epoch)] = spent_usd
    trial.set_user_attr(SPENT, spent)
    if LAST not in trial.user_attrs:
        trial.set_user_attr(LAST, epochs_max)


class CostPruner(BasePruner):
    """Stops a trial when a dollar in its rest is less likely to give a new best than one in a new trial.

    See `scavenger.search.trials.decide_trial`. The reason is in the trial's attribute `pruned_because`.
    """

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """See `optuna.pruners.BasePruner`."""
        one = _search_trial(trial, {})
        if one is None or not is_look(_dollars(trial)):
            return False
        trials = study.get_trials(deepcopy=False, states=_LIVE)
        others = [_search_trial(other, {}) for other in trials if other.number != trial.number]
        decision = decide_trial(one, [other for other in others if other is not None], _mode(study))
        if not decision.goes_on:
            log.info("trial %d is stopped: %s", trial.number, decision.reason)
            study._storage.set_trial_user_attr(trial._trial_id, "pruned_because", decision.reason)
        return not decision.goes_on


class CostSampler(BaseSampler):
    """Begins the trial of most expected improvement per dollar, of what TPE proposes and what is drawn evenly.

    The first trials, and parameters that not every trial has, are TPE's.

    Args:
        seed: Of all that is random.
        startup: Trials before the first that is chosen so.
    """

    def __init__(self, seed: int | None = None, *, startup: int = STARTUP, cost_power: float = 1.0) -> None:
        self._tpe = TPESampler(seed=seed, multivariate=True, n_startup_trials=startup)
        self._random = RandomSampler(seed=seed)
        self._chance = np.random.default_rng(seed)
        self._startup = startup
        self._cost_power = cost_power
        self._space = IntersectionSearchSpace(include_pruned=True)

    def reseed_rng(self) -> None:
        """See `optuna.samplers.BaseSampler`."""
        self._tpe.reseed_rng()
        self._random.reseed_rng()
        self._chance = np.random.default_rng()

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """See `optuna.samplers.BaseSampler`.

        Raises:
            ValueError: If the study has several directions.
        """
        _mode(study)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """See `optuna.samplers.BaseSampler`."""
        space = self._space.calculate(study)
        return {name: found for name, found in space.items() if not found.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """See `optuna.samplers.BaseSampler`."""
        if not search_space:
            return {}
        trials = [
            one
            for other in study.get_trials(deepcopy=False, states=_LIVE)
            if other.number != trial.number and (one := _search_trial(other, search_space)) is not None
        ]
        if len(trials) < self._startup or not any(one.complete for one in trials):
            return self._random.sample_relative(study, trial, search_space)
        known = {one.at for one in trials}
        rows = np.array(
            [row for row in self._candidates(study, trial, search_space, trials) if row not in known]
        )
        if not len(rows):
            return self._tpe.sample_relative(study, trial, search_space)
        chosen = rows[propose(rows, trials, _mode(study), cost_power=self._cost_power)]
        return _values(chosen, search_space)

    def _candidates(
        self,
        study: Study,
        trial: FrozenTrial,
        space: dict[str, BaseDistribution],
        trials: Sequence[SearchTrial],
    ) -> list[tuple[float, ...]]:
        drawn = self._chance.random((DRAWN, len(space)))
        sign = 1.0 if _mode(study) == "min" else -1.0
        best = sorted(
            (one for one in trials if one.values), key=lambda one: min(sign * v for v in one.values)
        )
        near = np.array([one.at for one in best[:BEST]])[self._chance.integers(0, min(BEST, len(best)), NEAR)]
        moved = self._chance.random(near.shape) < max(0.5, 1.0 / near.shape[1])
        near = np.clip(near + moved * self._chance.normal(0.0, NEAR_SD, near.shape), 0.0, 1.0)
        made = [_values(row, space) for row in np.concatenate((drawn, near))]
        made += [self._tpe.sample_relative(study, trial, space) for _ in range(PROPOSED)]
        return [_scaled(values, space) for values in made if set(values) >= set(space)]

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """See `optuna.samplers.BaseSampler`."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)


def _mode(study: Study) -> Literal["min", "max"]:
    if len(study.directions) > 1:
        raise ValueError("a search by dollars has one direction; make the cost an attribute or a constraint")
    return "max" if study.direction == StudyDirection.MAXIMIZE else "min"


def _search_trial(trial: FrozenTrial, space: Mapping[str, BaseDistribution]) -> SearchTrial | None:
    """The trial as a value; None if it has no evaluation, no costs, or not all parameters of the space."""
    spent = trial.user_attrs.get(SPENT)
    if not spent or not trial.intermediate_values or any(name not in trial.params for name in space):
        return None
    epochs = tuple(sorted(trial.intermediate_values))
    usd = _dollars(trial)
    last = max(int(trial.user_attrs[LAST]), epochs[-1])
    first = int(next(iter(spent)))
    each = (usd[-1] - usd[0]) / (epochs[-1] - first) if epochs[-1] > first else usd[0] / first
    complete = trial.state == TrialState.COMPLETE
    return SearchTrial(
        _scaled(trial.params, space),
        epochs,
        tuple(trial.intermediate_values[epoch] for epoch in epochs),
        last,
        usd[-1],
        0.0 if complete else each * (last - epochs[-1]),
        complete,
    )


def _dollars(trial: FrozenTrial) -> list[float]:
    """What the trial had cost after each evaluation; without prices, its epochs."""
    spent: dict[str, float] = trial.user_attrs[SPENT]
    return list(spent.values()) if list(spent.values())[-1] > 0.0 else [float(epoch) for epoch in spent]


def _scaled(values: Mapping[str, Any], space: Mapping[str, BaseDistribution]) -> tuple[float, ...]:
    """Parameters in [0, 1]; a choice among n is its index."""
    return tuple(_to_unit(values[name], found) for name, found in space.items())


def _to_unit(value: Any, found: BaseDistribution) -> float:
    if isinstance(found, CategoricalDistribution):
        return found.to_internal_repr(value) / (len(found.choices) - 1)
    assert isinstance(found, (FloatDistribution, IntDistribution))
    if found.log:
        return math.log(value / found.low) / math.log(found.high / found.low)
    return float((value - found.low) / (found.high - found.low))


def _values(
    row: Sequence[float] | np.ndarray[Any, Any], space: Mapping[str, BaseDistribution]
) -> dict[str, Any]:
    return {
        name: _of_unit(float(unit), found) for unit, (name, found) in zip(row, space.items(), strict=True)
    }


def _of_unit(unit: float, found: BaseDistribution) -> Any:
    if isinstance(found, CategoricalDistribution):
        return found.choices[min(int(unit * len(found.choices)), len(found.choices) - 1)]
    assert isinstance(found, (FloatDistribution, IntDistribution))
    low, high = float(found.low), float(found.high)
    value = low * (high / low) ** unit if found.log else low + unit * (high - low)
    if found.step is not None and not found.log:
        value = low + found.step * round((value - low) / found.step)
    value = min(max(value, low), high)
    return round(value) if isinstance(found, IntDistribution) else value
