"""Time and cost of every configuration: the statistical and the parallel model joined with the data set.

=======  ===========================================================================
e(B)     epochs to the target, from `statistical`
τ(K, B)  time of a step, seconds, from `parallel`
D        training samples per epoch; an epoch has ceil(D / B) steps
s        mean time of a step over its usual time τ, which slow steps make larger than 1
v(K)     time that training pauses for the evaluation after each epoch, seconds
T, C     time to the target, seconds; cost, US dollars
p        price of one VM, US dollars per hour
=======  ===========================================================================

T = e (ceil(D / B) s τ + v) and C = T K p / 3600: eq. 3-5 of Tyagi and Sharma, "Scavenger", with whole steps
and the evaluation counted. Under `CostTerms` (`domain/cost.py`) both also include the effects of a cloud: work takes
w = 1 / (1 - λ n d / 3600) times longer on n spot VMs, set-up u comes before it, and besides the n VMs, at q for the
disk of each, F dollars per hour are paid for aggregators:

    T' = u + w T   and   C' = T' (n (p + q) + F) / 3600

Without terms, starting the workers, aggregators, storage and traffic are not counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from pydantic import TypeAdapter

from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.cost import CostTerms
from scavenger.domain.curve import BoolArray, FloatArray, IntArray, TradeoffCurve
from scavenger.domain.measurement import Measurement, Profile
from scavenger.models.cost import (
    scatter_of_interruptions,
    slowdowns,
    terms_notes,
    traffic_usd_per_second,
)
from scavenger.models.course import Course
from scavenger.models.evaluation import EvaluationLaw, fit_evaluation
from scavenger.models.memory import MemoryLaw, fit_memory
from scavenger.models.noise import NoiseReading
from scavenger.models.overlap_law import beliefs_of
from scavenger.models.parallel import INTERVAL_Z, ParallelModel, fit_parallel
from scavenger.models.run_scatter import (
    DRIFT,
    RERUN_LOG_SD,
    RUN_LOG_SD,
    drift_log_sd,
    drift_note,
    run_log_sd,
)
from scavenger.models.statistical import StatisticalModel, fit_statistical
from scavenger.models.step_laws import StepTimes
from scavenger.models.transfer import transfer
from scavenger.models.trial import try_out
from scavenger.models.types import Count, NotNegative, Positive

SCHEMA_VERSION = 2

TRANSFER_MAX = 3
"""Configurations up to which a VM type's step times are those of another one, corrected by what was measured: so
few do not show how compute and synchronisation depend on K and B. Between types that hold different numbers of
workers nothing is carried over once a step was measured: how workers on one machine synchronise says little of
workers on several."""

NOT_COUNTED = "starting the workers, aggregators, storage and traffic are not counted"
"""Note on the costs that a curve without `CostTerms` leaves out."""

LOG_SD_MAX = 3.0
"""Largest deviation, a factor of 140 either way; a wider interval is no more informative and would overflow."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predictions for n configurations of one offer; arrays have shape `(n,)`, intervals are 90 % intervals."""

    time_s: FloatArray
    time_low_s: FloatArray
    time_high_s: FloatArray
    cost_usd: FloatArray
    cost_low_usd: FloatArray
    cost_high_usd: FloatArray
    step_time_s: FloatArray
    epochs: FloatArray
    extrapolated: BoolArray
    measured: BoolArray
    setup_s: FloatArray
    """Part of `time_s`: the start of VMs that are still to be launched."""


@dataclass(frozen=True, slots=True)
class VmModel:
    """The models of one VM type; `memory` is None if memory was not measured."""

    vm: str
    cpus: Count
    parallel: ParallelModel
    memory: MemoryLaw | None = None
    shared_cpus: Count | None = None
    """See `Offer.shared_cpus`."""


@dataclass(frozen=True, slots=True)
class JobModel:
    """The fitted models of a job, ready to predict; created by `fit`, `average` or `from_dict`.

    Attributes:
        vms: One entry per VM type that was profiled (or learned of from an earlier model); never empty.
        max_epochs: Number of epochs after which the run ends, target or not.
        notes: Notes for the user: assumptions, and what is not counted.
        mean_over_median: s, at least 1.
        course: The course of the metric in this job's run, or in a similar job's; None if there was none.
        run_log_sd: Standard deviation of ln of a run's step times over the profile's, see `run_scatter`.
        drift_log_sd: The same by drift of the machine during the search; 0 if nothing was measured twice.
    """

    dataset_size: Count
    statistical: StatisticalModel
    vms: tuple[VmModel, ...]
    evaluation: EvaluationLaw
    max_epochs: Positive
    notes: tuple[str, ...] = ()
    mean_over_median: Positive = 1.0
    course: Course | None = None
    run_log_sd: NotNegative = RUN_LOG_SD
    drift_log_sd: NotNegative = 0.0

    def __post_init__(self) -> None:
        if not self.vms:
            raise ValueError("a job model needs at least one VM type")

    @classmethod
    def fit(
        cls,
        profile: Profile,
        *,
        space: SearchSpace,
        epochs_hint: float | None,
        max_epochs: int,
        fixed_epochs: bool = False,
        reference_batch_size: int | None = None,
        prior: JobModel | None = None,
        noise: Sequence[NoiseReading] | None = None,
        passage_log_sd: float = 0.0,
        rate_kept: bool = False,
    ) -> JobModel:
        """Fit both models to a profile; deterministic, and independent of the order of its measurements.

        Args:
            epochs_hint: The user's own estimate at the smallest batch size.
            max_epochs: An upper bound, or the exact number if `fixed_epochs` states that there is no target.
            reference_batch_size: See `fit_statistical`.
            prior: A stored model of a similar job, used where the profile has no data.
            noise: Readings over the run so far; None takes those of the measurements.
            passage_log_sd, rate_kept: See `fit_statistical`.

        Raises:
            ValueError: If no usable step time was measured and `prior` has none either.
        """
        offers = {offer.vm: offer for offer in space.offers}
        known = [m for m in profile.measurements if m.configuration.vm in offers]
        left_out = len(profile.measurements) - len(known)
        vms, vm_notes = _fit_vms(space.offers, known, prior)
        if not vms:
            raise ValueError("no usable step time was measured, and no stored model has one")
        statistical = fit_statistical(
            known,
            profile.convergence,
            global_batch_sizes=space.global_batch_sizes,
            epochs_hint=epochs_hint,
            max_epochs=max_epochs,
            fixed_epochs=fixed_epochs,
            reference_batch_size=reference_batch_size,
            prior=None if prior is None else prior.statistical,
            noise=noise,
            passage_log_sd=passage_log_sd,
            rate_kept=rate_kept,
        )
        evaluation, evaluation_notes = fit_evaluation(
            profile, offers[vms[0].vm], EvaluationLaw() if prior is None else prior.evaluation
        )
        notes = (
            *((drift_note(*profile.twice),) if profile.twice else ()),
            *((f"measurements of other VM types left out: {left_out}",) if left_out else ()),
            *vm_notes,
            *evaluation_notes,
            NOT_COUNTED,
        )
        slow = profile.mean_over_median or (1.0 if prior is None else prior.mean_over_median)
        course = None if prior is None else prior.course
        scatter = run_log_sd(profile.run_ratios)
        if not known:  # the machine is that of another run
            scatter = run_log_sd(profile.rerun_ratios, RERUN_LOG_SD)
        return cls(
            profile.dataset_size,
            statistical,
            vms,
            evaluation,
            float(max_epochs),
            notes,
            slow,
            course,
            scatter,
            drift_log_sd(*profile.twice) if profile.twice else 0.0,
        )

    @property
    def relative_only(self) -> bool:
        """Whether only ratios between predictions are meaningful, not absolute values."""
        return self.statistical.relative_only

    def all_notes(self, costs: CostTerms | None = None, offers: Sequence[Offer] = ()) -> tuple[str, ...]:
        """Notes on the epochs, the job and every VM type, without duplicates; what is not counted comes last.

        The most important notes for a choice come first.

        Args:
            costs: Costs other than the workers'; the notes then list what these leave out.
            offers: Offers whose interruptions `costs` includes.
        """
        parallel = [note for vm in self.vms for note in vm.parallel.notes]
        drift = [note for note in self.notes if note.startswith(DRIFT)]
        fixed = self.statistical.fixed
        # what all figures are of comes before how sure they are
        first = self.statistical.notes[:1] if fixed is not None and fixed.reference_batch_size else ()
        first = ((costs.old_prices,) if costs is not None and costs.old_prices else ()) + first
        notes = tuple(dict.fromkeys((*first, *drift, *self.statistical.notes, *self.notes, *parallel)))
        counting = tuple(note for note in notes if note == NOT_COUNTED)
        others = tuple(note for note in notes if note != NOT_COUNTED)
        return (*others, *(counting if costs is None else terms_notes(costs, offers)))

    def knows(self, offer: Offer) -> bool:
        """Whether steps were measured on this VM type; otherwise step times are scaled by processor count."""
        return any(vm.vm == offer.vm for vm in self.vms)

    def with_share(self, before: float, now: float, note: str) -> JobModel:
        """The models of the same job with another share of the model on the fullest aggregator VM.

        Args:
            before, now: See `ParallelModel.with_share`.
            note: For the user.
        """
        vms = tuple(replace(vm, parallel=vm.parallel.with_share(before, now)) for vm in self.vms)
        return replace(self, vms=vms, notes=(note, *self.notes))

    def local_batch_max(self, offer: Offer) -> int | None:
        """The largest local batch that fits into a worker's part of a VM's memory; None where no limit is known."""
        laws = [vm.memory for vm in self.vms if vm.memory is not None and vm.vm == offer.vm]
        laws = laws or [vm.memory for vm in self.vms if vm.memory is not None]
        return laws[0].local_batch_max(offer.memory_bytes / offer.workers_per_vm) if laws else None

    def predict(
        self,
        offer: Offer,
        workers: IntArray,
        global_batch_size: IntArray,
        *,
        epochs: tuple[FloatArray, FloatArray] | None = None,
        costs: CostTerms | None = None,
    ) -> Prediction:
        """Time and cost of configurations of one offer; eq. 3-5, see the module.

        Args:
            workers, global_batch_size: K and B, shape `(n,)`, with `1 <= K <= B`.
            epochs: Result of `statistical.predict` at each B, if already computed.
            costs: Costs and delays other than the workers' training; None for none. The intervals include how the
                number of interruptions varies, but not the error of the given interruption rate.

        Raises:
            ValueError: If the shapes differ or a configuration gives nothing to some workers.
        """
        count, batch = np.asarray(workers, dtype=np.int64), np.asarray(global_batch_size, dtype=np.int64)
        if count.shape != batch.shape or count.ndim != 1:
            raise ValueError(
                f"workers and batch sizes must be vectors of one length, not {count.shape}, {batch.shape}"
            )
        if np.any(count < 1) or np.any(batch < count):
            raise ValueError("every configuration needs 1 <= K <= B")
        contention = contention_of(offer, count)
        parallel = self._parallel(offer)
        step_time_s, step_log_sd = parallel.predict(count, batch, contention, offer.workers_per_vm)
        mean_epochs, epochs_log_sd = epochs or self.statistical.predict(batch.astype(np.float64))
        steps_per_epoch = -(-self.dataset_size // batch)
        time_s = mean_epochs * (
            steps_per_epoch * self.mean_over_median * step_time_s
            + self.evaluation.evaluation_s(count, contention)
        )
        common = math.hypot(self.run_log_sd, self.drift_log_sd)
        log_sd = np.hypot(np.hypot(step_log_sd, common), epochs_log_sd)
        vms = -(-count // offer.workers_per_vm)
        usd_per_second = vms * offer.price_usd_per_hour / 3600.0
        setup_s = np.zeros(len(count))
        if costs is not None:
            usd_per_second = (
                usd_per_second
                + (vms * costs.shared.extras(spot=offer.spot).usd_per_hour + costs.shared.usd_per_hour)
                / 3600.0
            )
            usd_per_second = usd_per_second + traffic_usd_per_second(count, step_time_s, costs)
            usd_per_second = usd_per_second + (costs.aggregation_usd_per_step or 0.0) / step_time_s
            setup_s = np.where(vms > costs.ready.get(offer.vm, 0), costs.setup_s, 0.0)
            if offer.spot and (risk := costs.risks.get(offer.vm)) is not None:
                log_sd = np.hypot(log_sd, scatter_of_interruptions(time_s, vms, risk))
                time_s = time_s * slowdowns(vms, risk)
        margin = np.exp(INTERVAL_Z * np.minimum(log_sd, LOG_SD_MAX))
        low_s, high_s = time_s / margin, time_s * margin
        if costs is not None:
            time_s, low_s, high_s = time_s + setup_s, low_s + setup_s, high_s + setup_s
        outside = (count < parallel.workers_min) | (count > parallel.workers_max)
        outside |= (batch < self.statistical.batch_min) | (batch > self.statistical.batch_max)
        return Prediction(
            time_s=time_s,
            time_low_s=low_s,
            time_high_s=high_s,
            cost_usd=time_s * usd_per_second,
            cost_low_usd=low_s * usd_per_second,
            cost_high_usd=high_s * usd_per_second,
            step_time_s=step_time_s,
            epochs=mean_epochs,
            extrapolated=outside | (not self.knows(offer)),
            measured=parallel.is_measured(count, batch),
            setup_s=setup_s,
        )

    def ratio_log_sd(self, space: SearchSpace, curve: TradeoffCurve, index: int) -> FloatArray:
        """Standard deviation of ln of each configuration's step time over that of one of them, shape `(n,)`.

        Errors that both share cancel out of it, unless they are of two VM types.

        Args:
            curve: Over the offers of `space`.
            index: Of the one.
        """
        of = curve.configurations
        here = of.vm_index == of.vm_index[index]
        deviation = np.empty(len(curve))
        for number, offer in enumerate(space.offers):
            of_offer = of.vm_index == number
            workers, batch = of.workers[of_offer], of.global_batch_size[of_offer]
            contention, parallel = contention_of(offer, workers), self._parallel(offer)
            if here[of_offer].any():
                at = int(np.sum(of_offer[:index]))
                deviation[of_offer] = parallel.ratio_log_sd(
                    workers, batch, contention, at, offer.workers_per_vm
                )
            else:
                _, deviation[of_offer] = parallel.predict(workers, batch, contention, offer.workers_per_vm)
        one = space.offers[int(of.vm_index[index])]
        workers, batch = of.workers[index : index + 1], of.global_batch_size[index : index + 1]
        _, own = self._parallel(one).predict(workers, batch, contention_of(one, workers), one.workers_per_vm)
        deviation[~here] = np.hypot(deviation[~here], own[0])
        return deviation

    def _parallel(self, offer: Offer) -> ParallelModel:
        """The parallel model of this VM type, or the nearest one's, transferred."""
        for vm in self.vms:
            if vm.vm == offer.vm:
                return vm.parallel
        near = _nearest(self.vms, offer)
        return transfer(near.parallel, (), speed_ratio=offer.cpus / near.cpus)

    def to_dict(self) -> dict[str, object]:
        """Convert to plain JSON with its `schema_version`; `from_dict` returns an equal model."""
        return {"schema_version": SCHEMA_VERSION, "model": _adapter().dump_python(self, mode="json")}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> JobModel:
        """Read what `to_dict` wrote, checking every type and range.

        Raises:
            ValueError: If it is of another version, incomplete, of a wrong type, out of range or not finite, or
                cannot predict, see `trial.try_out`.
        """
        version = data.get("schema_version")
        if version != SCHEMA_VERSION:
            raise ValueError(f"a job model of version {version!r} cannot be read, only {SCHEMA_VERSION}")
        try:
            text = json.dumps(data.get("model"), allow_nan=False)
        except TypeError as error:
            raise ValueError(f"a job model must be plain JSON: {error}") from error
        model = _adapter().validate_json(text, strict=True)
        try_out(model)
        return model


@cache
def _adapter() -> TypeAdapter[JobModel]:
    return TypeAdapter(JobModel)


def contention_of(offer: Offer, workers: IntArray) -> FloatArray:
    """`Offer.contention` of each K, shape `(n,)`."""
    sizes, place = np.unique(workers, return_inverse=True)
    return np.array([offer.contention(int(size)) for size in sizes], dtype=np.float64)[place]


def _nearest(vms: Sequence[VmModel], offer: Offer) -> VmModel:
    """The VM type whose processors are most alike in number; of equals the first."""
    return min(vms, key=lambda vm: abs(math.log(vm.cpus / offer.cpus)))


def _fit_vms(
    offers: Sequence[Offer], measurements: Sequence[Measurement], prior: JobModel | None
) -> tuple[tuple[VmModel, ...], tuple[str, ...]]:
    """One model per VM type of which anything is known, in the order of the offers; and what they rest on.

    A VM type with few measurements takes the rest from the stored model of the same type, else from the VM type
    that was measured most (the first of equals) if both hold as many workers; one without any is left to
    `JobModel.predict`, unless a stored model has it.
    """
    measured = {offer.vm: [m for m in measurements if m.configuration.vm == offer.vm] for offer in offers}
    times = {offer.vm: [step_times(offer, m) for m in measured[offer.vm]] for offer in offers}
    counts = {
        vm: len({(t.workers, t.global_batch_size) for t in of_vm if t.usable()})
        for vm, of_vm in times.items()
    }
    most = max(offers, key=lambda offer: counts[offer.vm])
    stored = {} if prior is None else {vm.vm: vm for vm in prior.vms}
    base: ParallelModel | None = None
    found: dict[str, VmModel] = {}
    notes: list[str] = []
    for offer in (most, *(offer for offer in offers if offer is not most)):
        here, own, memory = counts[offer.vm], times[offer.vm], fit_memory(measured[offer.vm])
        if offer.vm in stored and here == 0:
            notes.append(f"step times on {offer.vm} are from stored models, not from this job")
            found[offer.vm] = stored[offer.vm]
            continue
        if here == 0:
            notes.append(
                f"no step was measured on {offer.vm}: its step times are another VM type's, by the number of processors"
            )
            continue
        if offer.vm in stored and here <= TRANSFER_MAX:
            notes.append(f"step times on {offer.vm} are from stored models, corrected by {_places(here)}")
            fitted = transfer(stored[offer.vm].parallel, own, speed_ratio=1.0)
            memory = stored[offer.vm].memory if memory is None else memory
        elif base is not None and here <= TRANSFER_MAX and offer.workers_per_vm == most.workers_per_vm:
            notes.append(f"step times on {offer.vm} are those of {most.vm}, corrected by {_places(here)}")
            fitted = transfer(base, own, speed_ratio=offer.cpus / most.cpus)
        else:
            fitted = fit_parallel(own, beliefs=beliefs_of(offer.shared_cpus))
        base = fitted if base is None else base
        found[offer.vm] = VmModel(offer.vm, offer.cpus, fitted, memory, offer.shared_cpus)
    return tuple(found[offer.vm] for offer in offers if offer.vm in found), tuple(notes)


def _places(count: int) -> str:
    return "1 measured configuration" if count == 1 else f"{count} measured configurations"


def step_times(offer: Offer, measurement: Measurement) -> StepTimes:
    """Convert a measurement on an offer to the input of the regressions."""
    return StepTimes(
        workers=measurement.configuration.workers,
        global_batch_size=measurement.configuration.global_batch_size,
        local_batch_size=measurement.configuration.local_batch_size,
        contention=offer.contention(measurement.configuration.workers),
        step_time_s=measurement.step_time_s,
        compute_s=measurement.compute_s,
        sync_s=measurement.sync_s,
        spread_s=measurement.step_time_spread_s,
        steps=measurement.steps,
        workers_per_node=offer.workers_per_vm,
    )
