"""Chooses the number of aggregator VMs of a job, `elastic.aggregator_vms: auto`, before any is rented.

It is fixed for a run, since the processes of a job are placed once. What it should be depends on the model, which is
known once a worker has built it, and on measured steps: so it is taken from earlier runs of the job on record. Only
numbers are chosen that the cloud's quotas have room for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from scavenger.control.places.room import Permitted, fit_to_data
from scavenger.control.places.vm_allocation import RentalCosts
from scavenger.control.provisioning.model_size import recorded_size
from scavenger.control.search.own_batch import own_batch_only
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.curve import Choice, Infeasible
from scavenger.domain.fingerprint import AGGREGATORS_MAX, BESIDE_WORKERS, Fingerprint, place_of_hardware
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.models.aggregation import ModelSize
from scavenger.models.job_model import SCHEMA_VERSION, JobModel
from scavenger.presentation.formatting import plural
from scavenger.search.aggregator_vms import ChosenVms, choose_vms, named_vms
from scavenger.search.choose import choose
from scavenger.search.curve import build_curve
from scavenger.store import Store

_LATEST = 50
"""So many of the latest jobs of the same name are looked at."""

_NOT_OF_STEPS = ("hardware", "goal")
"""Fields of a fingerprint in which jobs may differ whose step times are compared: a goal changes all times alike."""


def choose_aggregator_vms(
    job: JobSpec,
    whole: SearchSpace,
    costs: RentalCosts,
    permitted: Callable[[], Permitted],
    store: Store,
    *,
    beside: int,
) -> ChosenVms:
    """The number, and why.

    `BESIDE_WORKERS` is one of them where steps were measured with it, and no spot VM is lost with a part of the model.

    Args:
        whole: The search space without quotas.
        permitted: Asks the cloud what the job may rent; called if that matters.
        store: Has earlier runs of the job.
        beside: Number of aggregators if they are beside the workers.

    Raises:
        ConfigurationError: No VM of that type holds the model.
    """
    earlier = next(_earlier(job, store), None)
    if earlier is None:
        return ChosenVms(1, "1 aggregator VM, as no earlier run of this job tells whether more are worth it")
    fingerprint, size = earlier
    offer = costs.aggregator
    least = size.vms_for_memory(offer.memory_bytes)
    if least is None:
        raise ConfigurationError(
            f"elastic.aggregator_vms: {AGGREGATORS_MAX} {offer.vm} of {offer.memory_bytes / 2**30:.3g} GiB would not "
            "hold the model that this job had in its last run; name a larger VM type under resources",
            key="elastic.aggregator_vms",
        )
    models = _models(costs, store, fingerprint)
    if not models:
        why = (
            "for the memory of the model" if least > 1 else "which hold the model; no step was measured here"
        )
        return ChosenVms(least, f"{plural(least, 'aggregator VM')}, {why}")
    numbers = [
        vms
        for vms in range(least, AGGREGATORS_MAX + 1)
        # further VMs than the model can be divided into gain nothing
        if vms == least or size.share(vms) < size.share(vms - 1) or vms in models
    ]
    # not on a prediction alone: what it takes of the workers' processors was not measured on VMs
    measured = BESIDE_WORKERS in models
    if measured and least == 1 and not any(offer.spot for offer in whole.offers):
        numbers.append(BESIDE_WORKERS)
    worth = None if job.utility is None else job.utility.worth_at

    def chosen_of(spaces: Mapping[int, SearchSpace]) -> ChosenVms:
        options = {
            vms: _best(job, costs, space, _model_of(vms, models, size, beside), vms, fingerprint.dataset_size)
            for vms, space in spaces.items()
        }
        chosen = choose_vms(options, worth=worth, measured=frozenset(models))
        if chosen.vms == least > 1:
            return replace(chosen, reason=f"{chosen.reason}; fewer would not hold the model")
        return chosen

    free = chosen_of(dict.fromkeys(numbers, whole))
    try:
        allowed = permitted()
    except ScavengerError as error:  # the job ends with it if it lasts
        return replace(free, reason=f"{free.reason}; what quotas allow is not known: {error}")
    rooms = {vms: allowed.room(_rented(vms)) for vms in numbers}
    spaces = {vms: room.space for vms, room in rooms.items() if room.space is not None}
    if all(spaces.get(vms) == whole for vms in numbers):
        return free
    if not spaces:  # the job ends with the quota
        return ChosenVms(least, f"{plural(least, 'aggregator VM')}: {rooms[least].notes[0]}")
    chosen = chosen_of(spaces)
    if chosen.vms == free.vms:
        return chosen
    refused = "; ".join(rooms[free.vms].notes) or "the cluster refuses some sizes"
    return replace(chosen, reason=f"{chosen.reason}; not {named_vms(free.vms)}, as {refused}")


def _rented(vms: int) -> int:
    """How many VMs are rented for the aggregators."""
    return 1 if vms == BESIDE_WORKERS else vms


def _earlier(job: JobSpec, store: Store) -> Iterator[tuple[Fingerprint, ModelSize]]:
    """Earlier runs of the same training code, newest first."""
    for record in store.jobs(_LATEST, name=job.name):
        same = record.spec.get("train") == job.written().get("train")
        if same and record.fingerprint is not None and (size := recorded_size(store, record.id)) is not None:
            yield record.fingerprint, size


def _models(costs: RentalCosts, store: Store, fingerprint: Fingerprint) -> Mapping[int, JobModel]:
    """The newest model of such steps here, by the number of aggregator VMs with which they were measured."""
    found: dict[int, JobModel] = {}
    mine, _ = place_of_hardware(costs.cloud.hardware())
    here = replace(fingerprint, vm=costs.offered.offers[0].vm)
    for record in store.find_models(here, ignoring=_NOT_OF_STEPS):
        theirs, vms = place_of_hardware(record.fingerprint.hardware)
        if theirs != mine or vms in found or record.schema_version != SCHEMA_VERSION:
            continue
        try:
            found[vms] = JobModel.from_dict(record.model)
        except ValueError:
            continue
    return found


def _model_of(vms: int, models: Mapping[int, JobModel], size: ModelSize, beside: int) -> JobModel:
    """The model of a number of aggregator VMs, or that of the nearest number with what the shares change."""
    nearest = min(models, key=lambda measured: (abs(math.log(measured / vms)), measured))
    if nearest == vms:
        return models[vms]
    before, now = (size.share(beside if one == BESIDE_WORKERS else one) for one in (nearest, vms))
    return models[nearest].with_share(before, now, f"predicted for {named_vms(vms)}")


def _best(
    job: JobSpec, costs: RentalCosts, space: SearchSpace, model: JobModel, vms: int, dataset_size: int
) -> Choice | Infeasible:
    """What the objective chooses from a space with so many aggregator VMs."""
    space, _ = fit_to_data(space, dataset_size)
    deadline_s, budget_usd = job.constraints.deadline, job.constraints.budget
    curve = build_curve(
        model,
        space,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        costs=costs.planned_terms(_rented(vms)),
    )
    return choose(
        curve,
        job.objective if isinstance(job.objective, str) else "utility",
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        worth=None if job.utility is None else job.utility.worth_at,
        only=own_batch_only(job, model),
    )
