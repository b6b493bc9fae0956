"""What the data, a cloud's quotas and a cluster leave of a search space, each with a note for what is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from scavenger.cloud.quotas import after_vms, vms_left, vms_left_of_either
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.vm import Quota
from scavenger.errors import ConfigurationError
from scavenger.policy.spot import SpotMode
from scavenger.presentation.formatting import plural


@dataclass(frozen=True, slots=True)
class QuotaRoom:
    """What is left of a search space.

    Attributes:
        space: None if nothing is left.
        notes: What is left out by which quota.
        quota: The quota that leaves nothing; None if something is left.
    """

    space: SearchSpace | None
    notes: tuple[str, ...] = ()
    quota: Quota | None = None


@dataclass(frozen=True, slots=True)
class Permitted:
    """What a cloud has said about a job before anything is rented.

    Attributes:
        space: The search space, without what the cloud takes under no circumstances.
        quotas: The account's quotas, with what is used of them, without the job.
        aggregator: The offer for an aggregator VM, which is rented on demand.
    """

    provider: str
    space: SearchSpace
    quotas: tuple[Quota, ...]
    aggregator: Offer
    spot: SpotMode

    def room(self, aggregator_vms: int) -> QuotaRoom:
        """What the quotas leave with so many aggregator VMs, which are launched first."""
        vm, cpus, space = self.aggregator.vm, self.aggregator.cpus, self.space
        if found := vms_left(self.provider, self.quotas, vm, cpus, spot=False):
            count, quota = found
            if count < aggregator_vms:
                of = plural(aggregator_vms, "aggregator VM")
                return QuotaRoom(None, (f"{_named(quota)} leaves room for {count} of {of} {vm}",), quota)
        left = after_vms(self.provider, self.quotas, vm, cpus, vms=aggregator_vms)
        rooms = {offer: self._workers(offer, left) for offer in space.offers}
        known = [room for room in rooms.values() if room is not None]
        # the space is a product: a type that would limit all cluster sizes is removed instead
        most = min(space.workers[-1], max((workers for workers, _ in known), default=space.workers[-1]))
        most = space.workers[-1] if len(known) < len(rooms) else most
        beside = f" beside {aggregator_vms} aggregator VMs" if aggregator_vms > 1 else ""
        notes = []
        for offer, room in rooms.items():
            if room is not None and room[0] < space.workers[-1]:
                workers, quota = room
                what = "larger clusters are left out" if workers >= most else f"{offer.vm} is left out"
                notes.append(
                    f"{_named(quota)} leaves room for {plural(workers, 'worker')} on {offer.vm}{beside}: {what}"
                )
        if most < space.workers[0]:
            return QuotaRoom(None, tuple(notes), known[0][1])
        offers = tuple(offer for offer, room in rooms.items() if room is None or room[0] >= most)
        sizes = tuple(k for k in space.workers if k <= most)
        return QuotaRoom(replace(space, offers=offers, workers=sizes), tuple(notes))

    def _workers(self, offer: Offer, quotas: tuple[Quota, ...]) -> tuple[int, Quota] | None:
        """Number of workers on a VM type that the quotas allow, and the limiting quota; None if no quota applies."""
        if offer.spot and self.spot == "auto":
            found = vms_left_of_either(self.provider, quotas, offer.vm, offer.cpus)
        else:
            found = vms_left(self.provider, quotas, offer.vm, offer.cpus, spot=offer.spot)
        if found is None:
            return None
        count, quota = found
        asked = next(one for one in self.quotas if (one.name, one.region) == (quota.name, quota.region))
        return count * offer.workers_per_vm, asked


def _named(quota: Quota) -> str:
    return f"quota {quota.name} in {quota.region} ({quota.used:g} of {quota.limit:g} used)"


def admitted(
    offers: tuple[Offer, ...], aggregator: str, refusal: Callable[[str, bool], str], *, spot: SpotMode
) -> tuple[tuple[Offer, ...], tuple[str, ...]]:
    """The offers whose pods can be started, and a note for each other one.

    Args:
        aggregator: Size of the aggregators' pods; empty for none.
        refusal: Tells why no pod of a size can be started, on spot nodes or others; empty if one can.
        spot: Whether pods may be on spot nodes.

    Raises:
        ConfigurationError: If no offer is left, or the aggregators' pods cannot be started.
    """
    if aggregator and (why := refusal(aggregator, False)):
        raise ConfigurationError(f"the aggregators cannot be started: {why}", key="resources")

    def refused(offer: Offer) -> str:
        why = refusal(offer.vm, offer.spot)
        return refusal(offer.vm, False) if why and offer.spot and spot == "auto" else why

    said = {offer: refused(offer) for offer in offers}
    left = tuple(offer for offer, why in said.items() if not why)
    if not left:
        raise ConfigurationError(next(iter(said.values())), key="resources")
    return left, tuple(f"{offer.vm} is left out: {why}" for offer, why in said.items() if why)


def fit_to_data(space: SearchSpace, dataset_size: int) -> tuple[SearchSpace, tuple[str, ...]]:
    """Remove configurations that the data cannot fill; returns the new space and a note if any were removed.

    Raises:
        ConfigurationError: If no configuration is left.
    """
    sizes = tuple(size for size in space.global_batch_sizes if size <= dataset_size)
    if sizes == space.global_batch_sizes:
        return space, ()
    if not sizes:
        raise ConfigurationError(
            f"search.batch_size: the smallest, {space.global_batch_sizes[0]}, is more than the "
            f"{dataset_size} samples of an epoch"
        )
    workers = tuple(k for k in space.workers if k <= sizes[-1])
    if not workers:
        raise ConfigurationError(
            f"search.workers: the fewest, {space.workers[0]}, cannot each have a sample of the largest "
            f"batch, {sizes[-1]}, that an epoch of {dataset_size} samples fills"
        )
    note = f"batch sizes above {sizes[-1]} are left out: an epoch has {dataset_size} samples"
    return replace(space, global_batch_sizes=sizes, workers=workers), (note,)
