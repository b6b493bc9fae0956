"""Transfer of step times from the model of one VM type to another with few or no measurements.

A VM type differs from another in how fast it computes and in how fast it synchronises. The law of the one is kept and
two factors are found, α of computing and ρ of synchronisation, with the doubt of the old model and a wide one of the
factors; each measured point takes from both as much as it tells, in the linear-Gaussian way that `kriging` predicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scavenger.domain.curve import FloatArray
from scavenger.models.kriging import Kriging, ProfiledStepTime, places_of
from scavenger.models.parallel import ParallelModel, joined
from scavenger.models.step_laws import StepTimes

SPEED_LOG_SD = 0.5
"""Of computing carried over by a known ratio of speed, such as that of the processors: a factor of 1.6."""

UNKNOWN_SPEED_LOG_SD = 1.0
"""The same without one: VM types of one cloud differ by a factor of e most of the time."""

NETWORK_LOG_SD = 0.7
"""Of synchronisation: links of VM types differ by a factor of 2 up or down."""

SCALE_LOG_MAX = 20.0
"""No machine is faster or slower by a factor of 5e8; keeps absurd measurements from overflowing."""

STEP_MAX = 2.0
"""Of one iteration, as ln τ bends over a factor of e or two."""

HALVINGS_MAX = 10
"""A thousandth of a step that leads away from the points is none."""

ITERATIONS = 12
"""Gauss-Newton steps on two unknowns in which ln τ is convex and smooth: it has long settled."""


def transfer(
    model: ParallelModel, times: Sequence[StepTimes], speed_ratio: float | None = None
) -> ParallelModel:
    """Derive the model of another VM type, or of the same at another time.

    Args:
        model: Model of the VM type that was measured.
        times: Step times on the other type, may be empty; bad ones are dropped and counted in the notes.
        speed_ratio: How many times faster the other type computes, by prior knowledge.

    Raises:
        ValueError: If the ratio is not positive and finite.
    """
    if speed_ratio is not None and not (math.isfinite(speed_ratio) and speed_ratio > 0.0):
        raise ValueError(f"a ratio of speeds is positive and finite, not {speed_ratio}")
    good = sorted(time for time in times if time.usable())
    notes = [f"bad measurements dropped: {len(times) - len(good)}"] if len(good) < len(times) else []
    expected = np.array([0.0 if speed_ratio is None else -math.log(speed_ratio), 0.0])
    deviation = (UNKNOWN_SPEED_LOG_SD if speed_ratio is None else SPEED_LOG_SD, NETWORK_LOG_SD)
    measured = joined(good)
    factors, doubt = _factors(model, measured, expected, np.diag(deviation) ** 2)
    law = model.law.scaled(*np.exp(factors).tolist())
    directions = law.scale_directions()
    covariance = _rescaled(model, factors) + directions @ doubt @ directions.T
    places = places_of(measured)
    return replace(
        model,
        law=law,
        covariance=tuple(tuple(row) for row in (covariance / model.residual_log_sd**2).tolist()),
        measured=measured,
        measured_load=model.law.load,
        workers_min=int(min([model.workers_min, *places.workers])),
        workers_max=int(max([model.workers_max, *places.workers])),
        work_min=float(min([model.work_min, *places.work])),
        work_max=float(max([model.work_max, *places.work])),
        notes=(*model.notes, *notes),
    )


def _factors(
    model: ParallelModel, measured: tuple[ProfiledStepTime, ...], expected: FloatArray, doubt: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(ln α, ln ρ) and their covariance: as expected without a point, else by Gauss-Newton steps."""
    factors, known = expected, np.linalg.inv(doubt)

    def under(factors: FloatArray) -> tuple[Kriging, FloatArray]:
        """The points under these factors, and the covariance of their errors."""
        law = model.law.scaled(*np.exp(factors).tolist())
        kriging = Kriging(law, measured, model.residual_log_sd, model.scatter)
        # The old law's uncertainty counts as error of these points, so that their weight is not overestimated.
        return kriging, kriging.kernel + kriging.features @ _rescaled(model, factors) @ kriging.features.T

    def deviation(factors: FloatArray, kriging: Kriging, error: FloatArray) -> float:
        off = factors - expected
        return float(kriging.residual @ np.linalg.solve(error, kriging.residual) + off @ known @ off)

    for _ in range(ITERATIONS if measured else 0):
        kriging, error = under(factors)
        by_factor = kriging.features @ model.law.scaled(*np.exp(factors).tolist()).scale_directions()
        weighted = np.linalg.solve(error, np.column_stack((kriging.residual, by_factor)))
        information = by_factor.T @ weighted[:, 1:] + known
        doubt = np.linalg.inv(information)
        move = np.linalg.solve(information, by_factor.T @ weighted[:, 0] - known @ (factors - expected))
        move, here = np.clip(move, -STEP_MAX, STEP_MAX), deviation(factors, kriging, error)
        for _ in range(HALVINGS_MAX):
            nearer = np.clip(factors + move, -SCALE_LOG_MAX, SCALE_LOG_MAX)
            if deviation(nearer, under(nearer)[0], error) <= here:
                break
            move = move / 2.0
        else:
            break
        factors = nearer
    if not measured:
        return factors, doubt
    # The errors change with the factors: the last step, too, must be no worse than the first by the same ones.
    start, error = under(expected)
    if deviation(factors, under(factors)[0], error) <= deviation(expected, start, error):
        return factors, doubt
    by_factor = start.features @ model.law.scaled(*np.exp(expected).tolist()).scale_directions()
    return expected, np.linalg.inv(by_factor.T @ np.linalg.solve(error, by_factor) + known)


def _rescaled(model: ParallelModel, factors: FloatArray) -> FloatArray:
    """Covariance of the old coefficients where they are seconds of the new type."""
    unit = model.law.coefficient_scale(*np.exp(factors).tolist()) * model.residual_log_sd
    return np.asarray(np.array(model.covariance) * np.outer(unit, unit))
