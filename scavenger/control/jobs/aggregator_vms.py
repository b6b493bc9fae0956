"""Chooses the number of aggregator VMs of a job, `elastic.aggregator_vms: auto`, before any is rented.

It is fixed for a run, since the processes of a job are placed once. What it should be depends on the model, which is
known once a worker has built it, and on measured steps: so it is taken from earlier runs of the job on record. Only
numbers are chosen that the cloud's quotas have room for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from scavenger.control.job_file.load import override_job
from scavenger.control.jobs.platform import PreparedJob, RentedVms
from scavenger.control.provisioning.cloud_resources import CloudResources
from scavenger.control.provisioning.model_size import recorded_size
from scavenger.control.search.space import fit_to_data
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.curve import Choice, Infeasible
from scavenger.domain.elastic import AGGREGATORS_MAX
from scavenger.domain.fingerprint import Fingerprint, place_of_hardware
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.models.aggregation import ModelSize
from scavenger.models.job_model import SCHEMA_VERSION, JobModel
from scavenger.presentation.formatting import plural
from scavenger.search.aggregator_vms import ChosenVms, choose_vms
from scavenger.search.choose import choose
from scavenger.search.curve import build_curve
from scavenger.store import Store

_LATEST = 50
"""So many of the latest jobs of the same name are looked at."""

_NOT_OF_STEPS = ("hardware", "goal")
"""Fields of a fingerprint in which jobs may differ whose step times are compared: a goal changes all times alike."""


def settled(prepared: PreparedJob, store: Store) -> PreparedJob:
    """The job with a number of aggregator VMs, where its file leaves that to be chosen.

    Args:
        prepared: The job; returned as it is if it rents no aggregator VM, or says how many.
        store: Has earlier runs of the job.

    Raises:
        ConfigurationError: No VM of that type holds the model.
    """
    job, platform = prepared.job, prepared.platform
    if (
        job.elastic.aggregator_vms != "auto"
        or not isinstance(platform, RentedVms)
        or platform.aggregators is None
    ):
        return prepared
    chosen = _chosen(job, platform.resources, store)
    changes = {
        "elastic.aggregator_vms": chosen.vms,
        "elastic.aggregators": max(job.elastic.aggregators, chosen.vms),
    }
    job, offers = override_job(job, changes), platform.resources.offered
    notes = [note for note in platform.notes if note not in offers.notes]
    again = RentedVms(job, CloudResources(job), notes, kept=platform.kept)
    again.notes += (chosen.reason,)
    return replace(prepared, job=job, platform=again)


def _chosen(job: JobSpec, resources: CloudResources, store: Store) -> ChosenVms:
    """The number, and why."""
    earlier = next(_earlier(job, store), None)
    if earlier is None:
        return ChosenVms(1, "1 aggregator VM, as no earlier run of this job tells whether more are worth it")
    fingerprint, size = earlier
    offer = resources.aggregators
    least = size.vms_for_memory(offer.memory_bytes)
    if least is None:
        raise ConfigurationError(
            f"elastic.aggregator_vms: {AGGREGATORS_MAX} {offer.vm} of {offer.memory_bytes / 2**30:.3g} GiB would not "
            "hold the model that this job had in its last run; name a larger VM type under resources",
            key="elastic.aggregator_vms",
        )
    models = _models(job, resources, store, fingerprint)
    if not models:
        why = (
            "for the memory of the model" if least > 1 else "which hold the model; no step was measured here"
        )
        return ChosenVms(least, f"{least} aggregator VM{'' if least == 1 else 's'}, {why}")
    numbers = [
        vms
        for vms in range(least, AGGREGATORS_MAX + 1)
        # further VMs than the model can be divided into gain nothing
        if vms == least or size.share(vms) < size.share(vms - 1) or vms in models
    ]
    worth = None if job.utility is None else job.utility.worth_at

    def chosen_of(spaces: Mapping[int, SearchSpace]) -> ChosenVms:
        options = {
            vms: _best(job, resources, space, _model_of(vms, models, size), vms, fingerprint.dataset_size)
            for vms, space in spaces.items()
        }
        chosen = choose_vms(options, worth=worth, measured=frozenset(models))
        if chosen.vms == least > 1:
            return replace(chosen, reason=f"{chosen.reason}; fewer would not hold the model")
        return chosen

    free = chosen_of(dict.fromkeys(numbers, resources.space))
    try:
        permitted, _ = resources.permitted(ahead=True)
    except ScavengerError as error:  # the job ends with it if it lasts
        return replace(free, reason=f"{free.reason}; what quotas allow is not known: {error}")
    rooms = {vms: permitted.room(vms) for vms in numbers}
    spaces = {vms: room.space for vms, room in rooms.items() if room.space is not None}
    if all(spaces.get(vms) == resources.space for vms in numbers):
        return free
    if not spaces:  # the job ends with the quota
        return ChosenVms(least, f"{plural(least, 'aggregator VM')}: {rooms[least].notes[0]}")
    chosen = chosen_of(spaces)
    if chosen.vms == free.vms:
        return chosen
    refused = "; ".join(rooms[free.vms].notes) or "the cluster refuses some sizes"
    return replace(chosen, reason=f"{chosen.reason}; not {free.vms}, as {refused}")


def _earlier(job: JobSpec, store: Store) -> Iterator[tuple[Fingerprint, ModelSize]]:
    """Earlier runs of the same training code, newest first."""
    for record in store.jobs(_LATEST, name=job.name):
        same = record.spec.get("train") == job.written().get("train")
        if same and record.fingerprint is not None and (size := recorded_size(store, record.id)) is not None:
            yield record.fingerprint, size


def _models(
    job: JobSpec, resources: CloudResources, store: Store, fingerprint: Fingerprint
) -> Mapping[int, JobModel]:
    """The newest model of such steps here, by the number of aggregator VMs with which they were measured."""
    found: dict[int, JobModel] = {}
    mine, _ = place_of_hardware(resources.cloud.hardware())
    here = replace(fingerprint, vm=resources.offered.offers[0].vm)
    for record in store.find_models(here, ignoring=_NOT_OF_STEPS):
        place, vms = place_of_hardware(record.fingerprint.hardware)
        if place != mine or vms in found or record.schema_version != SCHEMA_VERSION:
            continue
        try:
            found[vms] = JobModel.from_dict(record.model)
        except ValueError:
            continue
    return found


def _model_of(vms: int, models: Mapping[int, JobModel], size: ModelSize) -> JobModel:
    """The model of a number of aggregator VMs, or that of the nearest number with what the shares change."""
    nearest = min(models, key=lambda measured: (abs(math.log(measured / vms)), measured))
    if nearest == vms:
        return models[vms]
    return models[nearest].with_share(
        size.share(nearest), size.share(vms), f"predicted for {vms} aggregator VMs"
    )


def _best(
    job: JobSpec, resources: CloudResources, space: SearchSpace, model: JobModel, vms: int, dataset_size: int
) -> Choice | Infeasible:
    """What the objective chooses from a space with so many aggregator VMs."""
    space, _ = fit_to_data(space, dataset_size)
    deadline_s, budget_usd = job.constraints.deadline, job.constraints.budget
    curve = build_curve(
        model,
        space,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        costs=resources.planned_terms(vms),
    )
    return choose(
        curve,
        job.objective if isinstance(job.objective, str) else "utility",
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        worth=None if job.utility is None else job.utility.worth_at,
        global_batch_size=job.reference_batch_size if job.batch_size_unproven else None,
    )
