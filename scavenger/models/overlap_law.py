"""The overlap law: step time if synchronisation overlaps with computing; the notation is that of `parallel`.

=========  ==================================================================================================
n, w       machines, ceil(K / workers per node); workers on each, at most K
n'         `Load.served` of n: n itself, under the load of the measurements
C          computing of the slowest worker, (a0 + a1 x) K^σ: the slowest of K is slower than the average one
Y          synchronisation: l (1 + β (w - 2)) c^κ on one machine, r (1 + β (n' - 2)) w^ω c^κ between, in
           proportion to n' below 2, or to n' - 1 (`Load.alone`); 0 at K = 1
φ, p       share of C that synchronisation may hide behind; how sharply the longer of the two hides the other
=========  ==================================================================================================

τ = (1 - φ) C + ((φ C)^p + Y^p)^(1/p). With φ = 1 it is Pollux's p-norm [1]_. Gradients are sent while the backward
pass still computes others, so at φ < 1 the forward pass stays unhidden [2]_. β spans a ring, of whose time only the
latency grows with n (β → 0) [3]_, and a parameter server that talks to each worker in turn (β = 1/2, Y ∝ n).

References:
    .. [1] Qiao et al., "Pollux", OSDI 2021, eq. 8-11.
    .. [2] Li et al., "PyTorch Distributed", VLDB 2020, §3.2.3.
    .. [3] Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from scavenger.domain.curve import FloatArray
from scavenger.models.step_laws import AS_MEASURED, STEP_TIME_MIN_S, Load
from scavenger.models.types import Finite, Positive

COEFFICIENTS = (
    "fixed computing",
    "computing per sample",
    "slowest of many workers",
    "synchronisation on one machine",
    "synchronisation between machines",
    "growth of synchronisation with machines",
    "bend of that growth",
    "growth of synchronisation with workers on a machine",
    "contention of synchronisation",
    "sharpness of overlap",
    "share of computing that hides synchronisation",
)
"""Names of the unknowns in notes, in the order of `OverlapLaw.unknowns`."""

SIZE = len(COEFFICIENTS)

STRAIGHT_MIN = 1e-3
"""Least bend; a smaller one is numerically equal to the logarithm, and would give 0 / 0."""

UNKNOWN_MAX = 80.0
"""Of a logarithm: seconds from 1e-35 to 1e35, far beyond any step, and powers of them still finite."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Normal prior of the unknowns: mean, shape `(p,)`, and inverse covariance, shape `(p, p)`."""

    mean: FloatArray
    precision: FloatArray


@dataclass(frozen=True, slots=True)
class OverlapLaw:
    """τ = (1 - φ) C + ((φ C)^p + Y^p)^(1/p); see the module.

    Attributes:
        straggling: σ.
        sync_local_s, sync_remote_s: l and r, seconds: of two workers on one machine; of two machines.
        growth, sharing, contending: β, ω and κ.
        overlap: p, above 1.
        hidden: φ, in (0, 1).
    """

    compute_base_s: Positive
    compute_per_sample_s: Positive
    straggling: Finite
    sync_local_s: Positive
    sync_remote_s: Positive
    growth: Positive
    bending: Finite
    sharing: Finite
    contending: Finite
    overlap: Annotated[float, Field(gt=1.0, allow_inf_nan=False)]
    hidden: Annotated[float, Field(gt=0.0, lt=1.0)]
    free: tuple[bool, ...] = (True,) * SIZE
    """Which unknowns the points determine; the others are held at their prior."""
    kind: Literal["overlap"] = "overlap"
    load: Load = AS_MEASURED

    def __post_init__(self) -> None:
        if len(self.free) != SIZE:
            raise ValueError(f"the overlap law has {SIZE} unknowns, not {len(self.free)}")

    @classmethod
    def from_unknowns(cls, unknowns: FloatArray, free: tuple[bool, ...] = (True,) * SIZE) -> OverlapLaw:
        """The inverse of `unknowns`, from shape `(11,)`."""
        u = np.clip(unknowns, -UNKNOWN_MAX, UNKNOWN_MAX).tolist()
        # Beyond these a sharper overlap or a larger share is the same number in floating point.
        sharpness, hidden = min(max(u[9], -12.0), 5.0), min(max(u[10], -12.0), 12.0)
        return cls(
            compute_base_s=math.exp(u[0]),
            compute_per_sample_s=math.exp(u[1]),
            straggling=u[2],
            sync_local_s=math.exp(u[3]),
            sync_remote_s=math.exp(u[4]),
            growth=math.exp(u[5]),
            bending=u[6],
            sharing=u[7],
            contending=u[8],
            overlap=1.0 + math.exp(sharpness),
            hidden=1.0 / (1.0 + math.exp(-hidden)),
            free=free,
        )

    def unknowns(self) -> FloatArray:
        """(ln a0, ln a1, σ, ln l, ln r, ln β, ω, κ, ln(p - 1), logit φ), shape `(11,)`."""
        return np.array(
            [
                math.log(self.compute_base_s),
                math.log(self.compute_per_sample_s),
                self.straggling,
                math.log(self.sync_local_s),
                math.log(self.sync_remote_s),
                math.log(self.growth),
                self.bending,
                self.sharing,
                self.contending,
                math.log(self.overlap - 1.0),
                math.log(self.hidden / (1.0 - self.hidden)),
            ]
        )

    def evaluate(
        self,
        workers: FloatArray,
        work: FloatArray,
        contention: FloatArray,
        workers_per_node: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """τ, shape `(n,)`, seconds, and ∂τ/∂unknown, shape `(n, 11)`; one worker per node if not given."""
        per_node = (
            np.ones_like(workers) if workers_per_node is None else np.minimum(workers_per_node, workers)
        )
        nodes = np.ceil(workers / per_node)
        log_workers, log_contention, log_per_node = np.log(workers), np.log(contention), np.log(per_node)
        remote, local = nodes > 1.0, (nodes <= 1.0) & (workers > 1.0)
        shared = self.load.served(nodes)
        log_pairs = np.log(np.maximum(np.where(remote, shared, per_node), 2.0) / 2.0)
        bent = self.bending if abs(self.bending) > STRAIGHT_MIN else math.copysign(STRAIGHT_MIN, self.bending)
        further = np.expm1(bent * log_pairs) / bent
        grown = 1.0 + self.growth * further
        log_sync = (
            np.where(
                remote,
                math.log(self.sync_remote_s) + self.sharing * log_per_node + np.log(self.load.of_two(shared)),
                math.log(self.sync_local_s),
            )
            + np.log(grown)
            + self.contending * log_contention
        )
        base = self.compute_base_s / (self.compute_base_s + self.compute_per_sample_s * work)
        log_compute = np.log(self.compute_base_s / base) + self.straggling * log_workers
        compute = np.maximum(np.exp(np.minimum(log_compute, 2.0 * UNKNOWN_MAX)), STEP_TIME_MIN_S)
        sync = np.where(remote | local, np.exp(np.minimum(log_sync, 2.0 * UNKNOWN_MAX)), 0.0)
        hiding = self.hidden * compute
        # ratio is the shorter over the longer, so that its power cannot overflow.
        longer = np.maximum(hiding, sync)
        ratio = np.minimum(hiding, sync) / longer
        power = ratio**self.overlap
        joined = longer * (1.0 + power) ** (1.0 / self.overlap)
        small = power / (1.0 + power)
        sync_share = np.where(sync > hiding, 1.0 - small, small)
        step = (1.0 - self.hidden) * compute + joined
        by_compute = (1.0 - self.hidden) * compute + joined * (1.0 - sync_share)
        by_sync = joined * sync_share
        entropy = -np.log1p(-small) * (1.0 - small) - small * np.log(np.maximum(small, 1e-300))
        slope = (self.overlap - 1.0) / self.overlap**2
        features = np.empty((len(workers), SIZE))
        features[:, 0] = by_compute * base
        features[:, 1] = by_compute * (1.0 - base)
        features[:, 2] = by_compute * log_workers
        features[:, 3] = by_sync * local
        features[:, 4] = by_sync * remote
        features[:, 5] = by_sync * (1.0 - 1.0 / grown)
        bending = (np.exp(bent * log_pairs) * log_pairs - further) / bent
        features[:, 6] = by_sync * self.growth * bending / grown
        features[:, 7] = features[:, 4] * log_per_node
        features[:, 8] = by_sync * log_contention
        features[:, 9] = -joined * slope * entropy
        features[:, 10] = (joined * (1.0 - sync_share) - hiding) * (1.0 - self.hidden)
        return step, features

    def sync_elasticity(self, step_time_s: FloatArray, features: FloatArray) -> FloatArray:
        """∂ ln τ / ∂ ln Y, in [0, 1], of what `evaluate` returned; shape `(n,)`."""
        return np.asarray((features[:, 3] + features[:, 4]) / step_time_s)

    def scaled(self, compute: float, sync: float) -> OverlapLaw:
        """The law with the times of computing and of synchronisation multiplied by these factors."""
        return replace(
            self,
            compute_base_s=self.compute_base_s * compute,
            compute_per_sample_s=self.compute_per_sample_s * compute,
            sync_local_s=self.sync_local_s * sync,
            sync_remote_s=self.sync_remote_s * sync,
        )

    def coefficient_scale(self, compute: float, sync: float) -> FloatArray:
        """By how much `scaled` multiplies the deviation of each unknown: not at all; shape `(11,)`."""
        return np.ones(SIZE)

    def scale_directions(self) -> FloatArray:
        """∂unknown / ∂ ln of the two factors of `scaled` at 1, shape `(11, 2)`."""
        directions = np.zeros((SIZE, 2))
        directions[:2, 0] = directions[3:5, 1] = 1.0
        return directions


class Beliefs(NamedTuple):
    """The statements of `overlap_prior` that public measurements can tell apart: mean and standard deviation of each.

    `python -m benchmarks priors` compares settings by the marginal likelihood of the public step times.

    Attributes:
        fixed: ln of fixed computing over computing per batch, at the middle of the measured batches.
        straggling: σ.
        growth: ln β.
        bending: Of the growth with machines: 0 the logarithm of their number, as of a tree; 1 the number itself.
    """

    fixed: tuple[float, float] = (0.0, 1.5)
    straggling: tuple[float, float] = (0.04, 0.03)
    growth: tuple[float, float] = (math.log(0.12), 0.7)
    bending: tuple[float, float] = (0.85, 0.3)


BELIEFS = Beliefs()

SHARED_BELIEFS = BELIEFS._replace(straggling=(0.3, 0.3))
"""Where the workers share one machine's processors: caches, memory and clock are common even if each has a
processor of its own, so that two compute 1.2 times as long as one, or not at all longer, or 1.5 times. On two
processors that were idle before it was 1.1, 1.2 and 1.7 (`python -m benchmarks prediction`)."""


def beliefs_of(shared_cpus: int | None) -> Beliefs:
    """The statements for an offer; see `Offer.shared_cpus`."""
    return BELIEFS if shared_cpus is None else SHARED_BELIEFS


def overlap_prior(unit_s: float, work: float, beliefs: Beliefs = BELIEFS) -> Prior:
    """What is known of any job before it is measured; the same for all, and free of the unit of time.

    Args:
        unit_s: The scale of the measured steps, seconds.
        work: The local batch in the middle of the measured ones, samples.

    Each row is one statement: a combination of unknowns, its mean and its standard deviation.
    """
    statements: tuple[tuple[dict[int, float], float, float], ...] = (
        # Computing per batch: any speed, within a factor of e^10 of the steps that were seen.
        ({1: 1.0}, math.log(unit_s / work), 10.0),
        # The fixed part against that per batch: small batches leave an accelerator idle, so it may be as long.
        ({0: 1.0, 1: -1.0}, math.log(work) + beliefs.fixed[0], beliefs.fixed[1]),
        # The slowest of sixteen workers is some 12 % slower than one alone, or 20 %, or 3 %.
        ({2: 1.0}, *beliefs.straggling),
        # Synchronisation is about as long as computing between two machines, and shorter on one; widely.
        ({3: 1.0, 1: -1.0}, math.log(work) - 1.0, 1.5),
        ({4: 1.0, 1: -1.0}, math.log(work), 1.5),
        # Twice the machines add an eighth: between a ring (hundredths) and a lone parameter server (all of it).
        ({5: 1.0}, *beliefs.growth),
        # Nearer to the number of machines (1) than to its logarithm (0).
        ({6: 1.0}, *beliefs.bending),
        ({7: 1.0}, 0.5, 0.5),
        ({8: 1.0}, 0.5, 0.5),
        # Gradients leave layer by layer as they are ready, so within the backward pass hiding is nearly
        # complete (p = 5; p = 2 is two standard deviations off) ...
        ({9: 1.0}, math.log(4.0), 0.7),
        # ... which takes twice the arithmetic of the forward pass: φ = 2/3, from 1/2 to 4/5 at one sd.
        ({10: 1.0}, math.log(2.0), 0.7),
    )
    rows, target = np.zeros((SIZE, SIZE)), np.zeros(SIZE)
    for row, (combination, mean, deviation) in enumerate(statements):
        for unknown, factor in combination.items():
            rows[row, unknown] = factor / deviation
        target[row] = mean / deviation
    return Prior(np.asarray(np.linalg.solve(rows, target)), np.asarray(rows.T @ rows))
