"""The sampler and the pruner by dollars, in Optuna's own searches."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from scavenger.integrations.optuna_search import CostPruner, CostSampler, _of_unit, _to_unit, note_epoch

EPOCHS = 12


def search(
    seed: int = 0, *, mode: str = "minimize", storage: str | None = None, trials: int = 20
) -> optuna.Study:
    """A loss with its best at a rate of 0.01 and width 24; wide networks cost more."""
    found = optuna.create_study(
        direction=mode, sampler=CostSampler(seed), pruner=CostPruner(), storage=storage
    )
    sign = 1.0 if mode == "minimize" else -1.0

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1e-4, 1.0, log=True)
        width = trial.suggest_int("width", 8, 64, step=8)
        kind = trial.suggest_categorical("kind", ["a", "b", "c"])
        final = abs(math.log10(rate) + 2.0) + abs(width - 24) / 40 + (0.3 if kind == "c" else 0.0)
        for epoch in range(1, EPOCHS + 1):
            note_epoch(trial, epoch, EPOCHS, epoch * width * 1e-4)
            trial.report(sign * (final + 1.0 / epoch), epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return sign * (final + 1.0 / EPOCHS)

    found.optimize(objective, n_trials=trials)
    return found


@pytest.mark.parametrize("mode", ["minimize", "maximize"])
def test_bad_trials_are_stopped_and_the_good_ones_found(mode: str) -> None:
    done = search(mode=mode)
    states = [trial.state.name for trial in done.trials]
    assert states.count("PRUNED") > states.count("COMPLETE") / 2
    assert abs(done.best_value) < 0.6
    assert any("to be the best" in trial.user_attrs.get("pruned_because", "") for trial in done.trials)


def test_a_seed_decides_everything() -> None:
    first, again = (search(3, trials=9) for _ in range(2))
    assert [trial.params for trial in first.trials] == [trial.params for trial in again.trials]


def test_a_search_in_a_database_is_the_same(tmp_path: object) -> None:
    stored = search(3, storage=f"sqlite:///{tmp_path}/search.db", trials=9)
    assert [trial.params for trial in stored.trials] == [trial.params for trial in search(3, trials=9).trials]


def test_without_prices_epochs_count_and_without_costs_nothing_is_pruned() -> None:
    def objective(trial: optuna.Trial, *, noted: bool) -> float:
        final = trial.suggest_float("x", 0.0, 1.0)
        for epoch in range(1, EPOCHS + 1):
            if noted:
                note_epoch(trial, epoch, EPOCHS, 0.0)
            trial.report(10.0 * final + 1.0 / epoch, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 10.0 * final

    counts = []
    for noted in (True, False):
        found = optuna.create_study(sampler=CostSampler(0), pruner=CostPruner())
        found.optimize(lambda trial, noted=noted: objective(trial, noted=noted), n_trials=15)
        counts.append(sum(trial.state.name == "PRUNED" for trial in found.trials))
    assert counts[0] > 0
    assert counts[1] == 0


def test_two_directions_are_refused_in_one_line() -> None:
    found = optuna.create_study(directions=["minimize", "minimize"], sampler=CostSampler(0))
    with pytest.raises(ValueError, match="one direction"):
        found.ask()


@pytest.mark.parametrize(
    "found",
    [
        FloatDistribution(1e-4, 1.0, log=True),
        FloatDistribution(-2.0, 3.0),
        FloatDistribution(0.0, 1.0, step=0.25),
        IntDistribution(8, 64, step=8),
        IntDistribution(1, 1000, log=True),
        CategoricalDistribution(["a", 2, None]),
    ],
)
def test_scaled_values_are_values_of_their_distribution_and_come_back(found: object) -> None:
    for unit in np.linspace(0.0, 1.0, 41):
        value = _of_unit(float(unit), found)  # type: ignore[arg-type]
        assert found._contains(found.to_internal_repr(value))  # type: ignore[attr-defined]
        assert 0.0 <= _to_unit(value, found) <= 1.0  # type: ignore[arg-type]
        assert _of_unit(_to_unit(value, found), found) == pytest.approx(value) or value is None  # type: ignore[arg-type]
