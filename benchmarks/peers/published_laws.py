"""Published forms that the models are compared with, fitted plainly: no prior beyond what keeps a fit finite.

Critical-batch, E = Emin (1 + B / B*), is of McCandlish et al., "An Empirical Model of Large-Batch Training", 2018;
noise-linear, e = e* + θ / √B, of Tyagi and Sharma, "Scavenger", eq. 6-7; the p-norm of computing and
synchronisation of Qiao et al., "Pollux", OSDI 2021, eq. 8-11.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import least_squares, nnls

from scavenger.domain.curve import FloatArray

_RIDGE = 0.03
"""Pull of the p-norm's terms towards nothing, relative to a step: six points do not tell seven coefficients."""


def critical_batch(batch: FloatArray, epochs: FloatArray, at: FloatArray) -> FloatArray:
    """Epochs at other batch sizes by critical-batch, fitted with errors relative to the epochs."""
    return _line(batch / batch.max(), epochs, at / batch.max())


def noise_linear(batch: FloatArray, epochs: FloatArray, at: FloatArray) -> FloatArray:
    """The same by noise-linear."""
    return _line(1.0 / np.sqrt(batch), epochs, 1.0 / np.sqrt(at))


def _line(x: FloatArray, y: FloatArray, at: FloatArray) -> FloatArray:
    """A line with neither coefficient negative."""
    (base, slope), _ = nnls(np.column_stack((1.0 / y, x / y)), np.ones(len(y)))
    return np.asarray(base + slope * at)


def p_norm(
    workers: FloatArray, local_batch: FloatArray, per_node: int, step_time_s: FloatArray
) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """τ = (C^γ + Y^γ)^(1/γ), C = α + β b; Y: 0 at K = 1, αl on one node, αr + βr (nodes - 2) on more. Fits ln τ."""
    unit, batch_max = float(step_time_s.max()), float(local_batch.max())

    def predict(unknowns: FloatArray, count: FloatArray, batch: FloatArray) -> FloatArray:
        alpha, beta, local, remote, growth, power = unknowns
        nodes = np.ceil(count / per_node)
        compute = alpha + beta * batch / batch_max + 1e-9
        sync = np.where(
            count == 1, 0.0, np.where(nodes > 1, remote + growth * np.maximum(nodes - 2, 0) / 16.0, local)
        )
        longest = np.maximum(compute, sync)
        total = longest * ((compute / longest) ** power + (sync / longest) ** power) ** (1.0 / power)
        return np.asarray(total * unit)

    def misfit(unknowns: FloatArray) -> FloatArray:
        off = np.log(predict(unknowns, workers, local_batch) / step_time_s)
        return np.append(off, _RIDGE * unknowns)

    lower, upper = [0.0] * 5 + [1.0], [np.inf] * 5 + [10.0]
    starts = [np.array([0.1, 0.8, 0.1, s, 0.1, p]) for s in (0.05, 0.3) for p in (1.1, 3.0)]
    best = min(
        (least_squares(misfit, s, bounds=(lower, upper)) for s in starts), key=lambda found: found.cost
    )
    return lambda count, batch: predict(best.x, count, batch)
