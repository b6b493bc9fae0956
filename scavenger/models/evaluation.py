"""Time of the evaluation after an epoch, for which training pauses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from scavenger.domain.configuration import Offer
from scavenger.domain.curve import FloatArray, IntArray
from scavenger.domain.measurement import Profile
from scavenger.models.types import NotNegative

FORWARD_SHARE = 1.0 / 3.0
"""Compute of an evaluation, as a share of that of training on as many samples, until one was measured: a backward pass
takes about twice as long as a forward pass."""


@dataclass(frozen=True, slots=True)
class EvaluationLaw:
    """v(K) = base + shared c / K: the part that every worker repeats, and the part that they share."""

    base_s: NotNegative = 0.0
    shared_s: NotNegative = 0.0

    def evaluation_s(self, workers: IntArray, contention: FloatArray) -> FloatArray:
        return np.asarray(self.base_s + self.shared_s * contention / workers)


def fit_evaluation(
    profile: Profile, offer: Offer, stored: EvaluationLaw
) -> tuple[EvaluationLaw, tuple[str, ...]]:
    """Fit the time of an evaluation, with notes on its source if it was not measured.

    Args:
        offer: The VM type on which it was measured.
        stored: The law of a stored model; used if nothing was measured.
    """
    rows = [(k, s) for k, s in profile.evaluation_s if k >= 1 and math.isfinite(s) and s > 0.0]
    if not rows:
        if stored != EvaluationLaw():
            return stored, ("evaluation time is from stored models",)
        return _evaluation_by_training(profile, offer)
    share = np.array([offer.contention(k) / k for k, _ in rows])
    seconds = np.array([s for _, s in rows])
    if len(np.unique(share)) < 2:
        return EvaluationLaw(base_s=float(np.median(seconds))), ()
    (base, shared), _ = nnls(np.column_stack((1.0 / seconds, share / seconds)), np.ones(len(rows)))
    return EvaluationLaw(float(base), float(shared)), ()


def _evaluation_by_training(profile: Profile, offer: Offer) -> tuple[EvaluationLaw, tuple[str, ...]]:
    """Estimate the time of an evaluation from the computing time of training steps, `FORWARD_SHARE` of it."""
    if not profile.validation_size:
        return EvaluationLaw(), ()
    per_sample_s = [
        one.compute_s * k / (one.configuration.global_batch_size * offer.contention(k))
        for one in profile.measurements
        for k in (one.configuration.workers,)
        if one.configuration.vm == offer.vm and math.isfinite(one.compute_s) and one.compute_s > 0.0
    ]
    if not per_sample_s:
        return EvaluationLaw(), ("evaluation after each epoch was not measured and is not counted",)
    share = FORWARD_SHARE * float(np.median(per_sample_s))
    note = "no evaluation was measured: it is taken as a third of the time of training on as many samples"
    return EvaluationLaw(shared_s=profile.validation_size * share), (note,)
