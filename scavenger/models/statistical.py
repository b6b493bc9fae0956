"""The statistical model: epochs to the target by global batch size, with their uncertainty.

=============  ==========================================================  ====================
B              global batch size, samples
e, E           epochs to the target
B*             critical batch size, samples: at it, epochs have doubled    `critical_batch_size`
φ              measured noise scale, samples; bears on B*
u              (ln level, ln shape) of a law: what the error bars are of
=============  ==========================================================  ====================

The laws and the regression are in `epoch_laws`. With finished runs at two or more batch sizes the laws are averaged,
each by how well it explains them; below that there is nothing to tell them apart, and the critical-batch law holds,
of which the noise scale is the parameter (ADR 5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from scavenger.domain.curve import EPOCHS_FROM, FloatArray
from scavenger.domain.measurement import ConvergenceRecord, Measurement
from scavenger.models.critical_batch import readings_of, scale_prior
from scavenger.models.epoch_laws import (
    CRITICAL_BATCH_LOG_SD,
    LAW_LOG_SD,
    CriticalBatch,
    EpochEvidence,
    EpochLaw,
    LawName,
    NoiseLinear,
    UShaped,
    posterior,
)
from scavenger.models.fixed_epochs import FixedEpochs
from scavenger.models.noise import NoiseReading, critical_batch_from_noise
from scavenger.models.types import Finite, NotNegative, Positive
from scavenger.models.without_target import without_target

__all__ = [
    "CRITICAL_BATCH_LOG_SD",
    "HINT_LOG_SD",
    "LAW_LOG_SD",
    "CriticalBatch",
    "EpochLaw",
    "FixedEpochs",
    "NoiseLinear",
    "StatisticalModel",
    "UShaped",
    "fit_statistical",
]

RUN_LOG_SD = 0.08
"""Prior deviation of a finished run from its job's mean: three in four jobs of public
convergence data have less, their median 0.04, the most varied 0.2."""

RUN_LOG_SD_WEIGHT = 4.0
"""Degrees of freedom that `RUN_LOG_SD` counts for: a few repeated runs outweigh it, one pair does not. As many does
the job's own spread count for at each of its batch sizes, so that five equal runs do not pass for exact."""

EVALUATION_SD = 0.7
"""Evaluations by which runs that are judged after every epoch differ, besides: the target is seen to be reached at an
evaluation only, whose noise may let it be the one before or after. Eight finished runs of small jobs, of 6 to 27
epochs, were 0.29 away in ln e (root mean square) from what one run before them had taken."""

HINT_LOG_SD = 0.3
"""Standard deviation of ln of the user's own number of epochs: trusted within a third."""

BOUND_LOG_SD = 0.7
"""An upper bound on the epochs says little of their number: a factor of two."""

EXTRAPOLATION_LOG_SD = 0.25
"""Error that each factor e beyond the known batch sizes adds: root mean square over public convergence data
where the lower half of the batch sizes was fitted and the upper predicted."""

DISTANCES = np.concatenate(([0.0], 2.0 ** np.arange(-2.0, 6.0)))
"""Outside the known batch sizes, in ln B: where doubt is formed, to be interpolated between; no batch lies further."""


@dataclass(frozen=True, slots=True)
class StatisticalModel:
    """A fitted law and its uncertainty; created by `fit_statistical`.

    Attributes:
        law: The most probable law at its mean parameters, for the report. Predictions average over all laws,
            unless `evidence` is None: then they are this law's own.
        level_log_var, shape_log_var, cross_log_var: Covariance of u within `law`.
        law_log_sd: What a law leaves at one batch size even if u were known.
        batch_min, batch_max: Range in which B was profiled or trained.
        relative_only: The level is a mere upper bound: ratios mean something, epochs do not.
        evidence: The data by which the laws were weighted.
        run_log_sd: How far one run lies from the mean of many at the same batch size.
        law_weights: Posterior probability of each law, the largest first.
    """

    law: EpochLaw
    level_log_var: NotNegative
    shape_log_var: NotNegative
    cross_log_var: Finite
    law_log_sd: NotNegative
    batch_min: Positive
    batch_max: Positive
    relative_only: bool = False
    notes: tuple[str, ...] = ()
    evidence: EpochEvidence | None = None
    run_log_sd: NotNegative = 0.0
    law_weights: tuple[tuple[LawName, NotNegative], ...] = ()

    def predict(
        self, global_batch_size: FloatArray, *, runs: FloatArray | float = 1.0
    ) -> tuple[FloatArray, FloatArray]:
        """Epochs at each batch size and the standard deviation of their logarithm; both of shape `(n,)`.

        The deviation joins the laws' parameters, the choice between them, what they leave, `EXTRAPOLATION_LOG_SD`
        for each factor of e outside the known batch sizes, and how far the mean of `runs` runs strays.

        Args:
            global_batch_size: Samples, positive.
            runs: Over how many runs the epochs in question are a mean: 1 for those of the run to come.
        """
        batch = np.asarray(global_batch_size, dtype=np.float64)
        if isinstance(self.law, FixedEpochs):
            return self.law.epochs(batch), np.zeros(batch.shape)
        sizes, place = np.unique(batch, return_inverse=True)
        outside = np.maximum(np.log(sizes / self.batch_max), np.log(self.batch_min / sizes))
        reach = np.exp(DISTANCES if np.any(outside > 0.0) else DISTANCES[:1])
        log_epochs, variance = self._mean(
            np.concatenate((sizes, self.batch_max * reach, self.batch_min / reach))
        )
        within, above, below = np.split(variance, (len(sizes), len(sizes) + len(reach)))
        # Laws that differ near the edge may agree again far outside, which is no knowledge: doubt never falls there.
        side = np.where(
            sizes > self.batch_max,
            np.interp(outside, np.log(reach), np.maximum.accumulate(above)),
            np.interp(outside, np.log(reach), np.maximum.accumulate(below)),
        )
        variance = (
            np.where(outside > 0.0, side, within) + (EXTRAPOLATION_LOG_SD * np.maximum(outside, 0.0)) ** 2
        )
        deviation = np.sqrt(variance[place] + self.run_log_sd**2 / np.asarray(runs))
        return np.exp(log_epochs[: len(sizes)])[place], deviation

    @property
    def fixed(self) -> FixedEpochs | None:
        """The law of a run without a target; None with one."""
        return self.law if isinstance(self.law, FixedEpochs) else None

    def progress_share(self, global_batch_size: FloatArray) -> FloatArray | None:
        """What a run without a target keeps of its progress at each B; see `FixedEpochs.progress_share`.

        Returns:
            Shares in (0, 1), shape `(n,)`; None with a target or at equal progress, which take more epochs instead, or
            without a B*.
        """
        return None if self.fixed is None else self.fixed.progress_share(global_batch_size)

    def most_informative(self, candidates: Sequence[int]) -> int:
        """The batch size at which finished runs would lower the uncertainty over the known range most.

        It is measured by the variance of ln e that they explain, summed over even steps of ln B. Only the model
        is asked, so nothing need be known of the candidates.

        Raises:
            ValueError: If there are no candidates, or the run has no target.
        """
        if not candidates or self.evidence is None:
            raise ValueError(
                "which batch size tells most needs candidates, and a model of the epochs to a target"
            )
        sizes = np.asarray(sorted(set(candidates)), dtype=np.float64)
        if len(sizes) > DENSE_SIZES:
            # Neighbours give almost the same information, and their joint covariance would fill the memory.
            even = np.searchsorted(sizes, np.geomspace(sizes[0], sizes[-1], DENSE_SIZES))
            sizes = sizes[np.unique(even)]
        grid = np.geomspace(self.batch_min, self.batch_max, GRID_SIZES)
        _, covariance = posterior(self.evidence).joint(np.concatenate((sizes, grid)))
        count = len(sizes)
        noise = float(np.median(self.evidence.log_sd)) ** 2
        explained = (covariance[:count, count:] ** 2).sum(axis=1) / (np.diag(covariance)[:count] + noise)
        return int(sizes[int(np.argmax(explained))])

    def at_level(self, global_batch_size: int, epochs: float, log_sd: float, note: str) -> StatisticalModel:
        """The same growth with B, for a run that needs so many epochs at one batch size.

        Args:
            log_sd: Standard deviation of ln of the epochs; at least `LAW_LOG_SD` counts.
            note: Source of the level, for the user.

        Returns:
            The model, or this one if its epochs are fixed or it has no evidence to refer to.
        """
        evidence, batch, deviation = self.evidence, float(global_batch_size), max(log_sd, LAW_LOG_SD)
        if evidence is None or isinstance(self.law, FixedEpochs):
            return self
        if len(evidence.batch) < 2:
            level = _Level((batch,), (math.log(epochs),), (deviation,), 0.0, False, note)
        else:
            shift = math.log(epochs / float(self.predict(np.array([batch]))[0][0]))
            log_epochs = tuple(value + shift for value in evidence.log_epochs)
            level = _Level(evidence.batch, log_epochs, evidence.log_sd, deviation, False, note)
        moved = replace(
            evidence,
            batch=level.batch,
            log_epochs=level.log_epochs,
            log_sd=level.log_sd,
            batch_max=max(evidence.batch_max, batch),
        )
        known = (min(self.batch_min, batch), max(self.batch_max, batch))
        return _by_evidence(moved, level, known, (note, *self.notes[1:]))

    def _mean(self, batch: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of ln of the mean epochs, batch sizes increasing."""
        if self.evidence is not None:
            found = posterior(self.evidence)
            if len(batch) <= DENSE_SIZES:
                return found.predict(batch)
            # Both are smooth in ln B, so that many batch sizes need not be many evaluations.
            grid = np.geomspace(batch[0], batch[-1], DENSE_SIZES)
            mean, variance = found.predict(grid)
            between, places = np.log(batch), np.log(grid)
            return np.interp(between, places, mean), np.interp(between, places, variance)
        slope = self.law.shape_gradient(batch)
        parameters = self.level_log_var + 2.0 * slope * self.cross_log_var + slope**2 * self.shape_log_var
        return np.log(self.law.epochs(batch)), np.maximum(parameters, 0.0) + self.law_log_sd**2


DENSE_SIZES = 256
"""Batch sizes between which lines are drawn, where more are asked for: over a range of a thousand that is off by less
than a ten-thousandth."""

GRID_SIZES = 31
"""Even steps of ln B over which doubt is summed: finer than `LAW_LENGTH` over any range that is searched."""


def fit_statistical(
    measurements: Sequence[Measurement],
    convergence: Sequence[ConvergenceRecord],
    *,
    global_batch_sizes: tuple[int, ...],
    epochs_hint: float | None,
    max_epochs: float,
    fixed_epochs: bool = False,
    reference_batch_size: int | None = None,
    law: Literal["critical-batch", "u-shaped", "noise-linear"] | None = None,
    prior: StatisticalModel | None = None,
    noise: Sequence[NoiseReading] | None = None,
    passage_log_sd: float = 0.0,
    rate_kept: bool = False,
) -> StatisticalModel:
    """Fit the epochs as a function of B to the available evidence.

    The level comes from finished runs, else the hint, else a model of alike jobs, else the bound; how epochs
    grow with B from finished runs and φ together, or a model of alike jobs where no φ was measured.

    Args:
        convergence: Finished runs; invalid ones (not positive, not finite) are left out.
        global_batch_sizes: Batch sizes of the search space, increasing; `epochs_hint` is for the smallest, and
            `max_epochs` bounds the largest.
        fixed_epochs: Without a target, every run lasts `max_epochs`,
        reference_batch_size: or, given this, as many as make the progress of `max_epochs` at this batch size.
        law: The only law to fit; None weights all laws by the evidence.
        prior: Stored model that gives the level or B* if there is no other evidence.
        noise: φ over the run so far, with its progress; None takes that of the measurements.
        passage_log_sd: Standard deviation of ln of a run's epochs by the noise of its evaluations, as far as known.
        rate_kept: Whether the learning rate is that of the smallest batch size at every other one.

    Raises:
        ValueError: If `max_epochs` or `epochs_hint` is not positive and finite.
    """
    for name, value in (("max_epochs", max_epochs), ("epochs_hint", epochs_hint)):
        if value is not None and not (math.isfinite(value) and value > 0.0):
            raise ValueError(f"{name} must be positive and finite, not {value}")
    runs = [run for run in convergence if run.global_batch_size > 0 and 0.0 < run.epochs < math.inf]
    seen = [run.global_batch_size for run in runs] + [m.configuration.global_batch_size for m in measurements]
    low, high = (min(seen), max(seen)) if seen else (global_batch_sizes[0], global_batch_sizes[-1])
    readings = readings_of(measurements) if noise is None else noise
    stored = _stored_scale(prior)
    scale = scale_prior(readings, global_batch_sizes, stored, rate_kept=rate_kept)
    if fixed_epochs:
        fixed, notes = without_target(
            max_epochs,
            scale,
            global_batch_sizes,
            reference=reference_batch_size,
            known=stored is not None or critical_batch_from_noise(readings) is not None,
        )
        return StatisticalModel(fixed, 0.0, 0.0, 0.0, 0.0, low, high, notes=notes)

    level = _level(runs, global_batch_sizes, epochs_hint, max_epochs, prior, passage_log_sd)
    floor, slope = _noise_line(measurements)
    evidence = EpochEvidence(
        batch=level.batch,
        log_epochs=level.log_epochs,
        log_sd=level.log_sd,
        scale_log_mean=scale.log_mean,
        scale_log_sd=scale.log_sd,
        scale_informed=scale.informed,
        batch_max=float(max(*global_batch_sizes, *level.batch)),
        noise_floor=floor,
        noise_slope=slope,
        laws=_laws_in_question(law, len(level.batch)),
    )
    # With runs at several batch sizes these say how epochs grow, and where B* came from matters little.
    notes = (level.note, scale.note) if len(level.batch) < 2 else (level.note,)
    return _by_evidence(evidence, level, (low, high), notes)


def _stored_scale(prior: StatisticalModel | None) -> tuple[float, float] | None:
    """B* of a stored model, and the standard deviation of its logarithm."""
    if prior is None or isinstance(prior.law, NoiseLinear) or not prior.law.critical_batch_size:
        return None
    fixed = isinstance(prior.law, FixedEpochs)
    spread = CRITICAL_BATCH_LOG_SD if fixed else max(math.sqrt(prior.shape_log_var), LAW_LOG_SD)
    return prior.law.critical_batch_size, spread


def _by_evidence(
    evidence: EpochEvidence, level: _Level, known: tuple[float, float], notes: tuple[str, ...]
) -> StatisticalModel:
    """Build the model from the evidence.

    Args:
        known: Smallest and largest batch size that was profiled or trained.
        notes: Where the level and B* come from.
    """
    found = posterior(evidence)
    law, level_log_var, shape_log_var, cross_log_var = found.dominant()
    weights = found.law_weights()
    if len(weights) > 1:
        shares = ", ".join(f"{name} {weight:.0%}" for name, weight in weights)
        notes = (*notes, f"laws of epochs by the evidence of {len(evidence.batch)} batch sizes: {shares}")
    return StatisticalModel(
        law,
        level_log_var,
        shape_log_var,
        cross_log_var,
        LAW_LOG_SD,
        *known,
        relative_only=level.bound,
        notes=notes,
        evidence=evidence,
        run_log_sd=level.run_log_sd,
        law_weights=weights,
    )


def _laws_in_question(law: str | None, batch_sizes: int) -> tuple[LawName, ...]:
    if law == "u-shaped":
        return ("u-shaped",)
    if law == "noise-linear":
        return ("noise-linear",)
    if batch_sizes < 2:
        return ("critical-batch",)
    return ("sharp-critical-batch",) if law else ("sharp-critical-batch", "u-shaped", "noise-linear")


class _Level(NamedTuple):
    """Epochs at some batch sizes, by the best evidence.

    Attributes:
        batch, log_epochs, log_sd: B, ln of the mean epochs there, and its standard deviation.
        run_log_sd: Standard deviation of ln of a single run's epochs around the mean.
        bound: Whether it is only an upper bound.
        note: Source of the level, for the user.
    """

    batch: tuple[float, ...]
    log_epochs: tuple[float, ...]
    log_sd: tuple[float, ...]
    run_log_sd: float
    bound: bool
    note: str


def _level(
    runs: Sequence[ConvergenceRecord],
    batch_sizes: tuple[int, ...],
    epochs_hint: float | None,
    max_epochs: float,
    prior: StatisticalModel | None,
    passage_log_sd: float,
) -> _Level:
    """The level from finished runs, else the hint, else a stored model, else the bound."""
    if runs:
        sizes = ", ".join(f"{size:g}" for size in sorted({run.global_batch_size for run in runs}))
        missed = sum(run.log_sd > 0.0 for run in runs)
        kind = "earlier" if missed else "finished"
        note = f"{EPOCHS_FROM}{kind} runs ({len(runs)}) at batch {sizes}"
        if missed:
            note += f", {missed} of which missed the target: what they lacked is forecast"
        return _Level(*_run_means(runs, passage_log_sd), False, note)
    smallest, largest = float(batch_sizes[0]), float(batch_sizes[-1])
    if epochs_hint is not None:
        note = f"{EPOCHS_FROM}goal.epochs_hint: {epochs_hint:g} at batch {smallest:g}"
        return _Level((smallest,), (math.log(epochs_hint),), (HINT_LOG_SD,), 0.0, False, note)
    if prior is not None and not prior.relative_only:
        epochs, deviation = prior.predict(np.array([smallest]))
        note = f"{EPOCHS_FROM}stored models, none of them a finished run of this job"
        spread = max(float(deviation[0]), LAW_LOG_SD)
        return _Level((smallest,), (math.log(float(epochs[0])),), (spread,), 0.0, False, note)
    note = (
        f"epochs to the target are unknown, taken as if batch {largest:g} needed all {max_epochs:g} that are allowed: "
        "only ratios between configurations mean something"
    )
    return _Level((largest,), (math.log(max_epochs),), (BOUND_LOG_SD,), 0.0, True, note)


def _run_means(
    runs: Sequence[ConvergenceRecord], passage_log_sd: float
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...], float]:
    """Per batch size: B, ln of the mean epochs and its standard error; and the spread of single runs.

    The variance of ln e at a batch size is shrunk to that pooled over all of them, and the pooled one to
    `RUN_LOG_SD` and what evaluations add to it, both by degrees of freedom: batch sizes with one run have a standard
    error too, and a few equal runs, which whole epochs make likely, do not pass for exact. What is not
    known of the spread of the run to come is widened as Student's t is, so that 1.645 times it covers 90 % however few
    runs there were; what the noise of its evaluations adds is known. A run that missed its target counts by the error
    of its forecast.
    """
    by_size: dict[int, list[ConvergenceRecord]] = {}
    for run in runs:
        by_size.setdefault(run.global_batch_size, []).append(run)
    sizes = sorted(by_size)
    # How runs vary is told by those that reached the target: a forecast strays by its own error.
    reached = [[math.log(run.epochs) for run in by_size[size] if not run.log_sd] for size in sizes]
    squares, counts = [_squares(logs) for logs in reached], [len(logs) for logs in reached]
    weight = RUN_LOG_SD_WEIGHT
    freedom = weight + sum(max(count - 1, 0) for count in counts)
    of_runs = [max(EVALUATION_SD * run.every / run.epochs, passage_log_sd) for run in runs]
    noise = math.fsum(min(log_sd, BOUND_LOG_SD) ** 2 for log_sd in of_runs) / len(runs)
    pooled = (weight * (RUN_LOG_SD**2 + noise) + math.fsum(squares)) / freedom
    student = float(stdtrit(freedom, 0.95) / ndtri(0.95))
    known = min(passage_log_sd**2, pooled)
    spread = math.sqrt(student**2 * (pooled - known) + known)
    means, errors = [], []
    for size, square, count in zip(sizes, squares, counts, strict=True):
        own = (weight * pooled + square) / (weight + max(count - 1, 0))
        trust = [own / (own + run.log_sd**2) for run in by_size[size]]
        whole = math.fsum(trust)
        epochs = math.fsum(
            run.epochs * share / whole for run, share in zip(by_size[size], trust, strict=True)
        )
        means.append(math.log(epochs))
        errors.append(math.sqrt(own / whole))
    return tuple(float(size) for size in sizes), tuple(means), tuple(errors), spread


def _squares(values: Sequence[float]) -> float:
    """Sum of squares around the mean."""
    mean = math.fsum(values) / max(len(values), 1)
    return math.fsum((value - mean) ** 2 for value in values)


def _noise_line(measurements: Sequence[Measurement]) -> tuple[float, float]:
    """c0, c1 of normalised γ by 1/√B, averaged over K (eq. 7); pure 1/√B below two profiled B."""
    rows = [
        (m.configuration.global_batch_size, m.gradient_noise / max(2, m.configuration.workers))
        for m in measurements
        if m.gradient_noise is not None and 0.0 < m.gradient_noise < math.inf
    ]
    if len({batch for batch, _ in rows}) < 2:
        return 0.0, 1.0
    root = 1.0 / np.sqrt([float(batch) for batch, _ in rows])
    # Two coefficients, neither negative: a line, or the better of its two parts.
    noise = np.array([value for _, value in rows])
    slope, floor = np.polyfit(root, noise, 1)
    if slope <= 0.0:
        return float(noise.mean()), 0.0
    return (float(floor), float(slope)) if floor >= 0.0 else (0.0, float(root @ noise / (root @ root)))
