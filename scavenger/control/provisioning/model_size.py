"""What a job's model asks of aggregator VMs: found when its first worker has built it, and kept for later runs."""

from __future__ import annotations

from scavenger.domain.fingerprint import AGGREGATORS_MAX
from scavenger.models.aggregation import ModelSize, optimizer_copies
from scavenger.policy.provisioning.slots import evenly
from scavenger.presentation.formatting import size
from scavenger.store import Store
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages.values import Manifest

_KIND = "model"
"""Kind of the event that holds the size of a job's model."""


def largest_share(layout: Layout, vms: int) -> float:
    """Largest share of a model on one of these VMs; the one with most aggregators is taken to have the largest."""
    parts = [sum(end - begin for begin, end in ranges) for ranges in layout.part_ranges]
    return sum(sorted(parts, reverse=True)[: evenly(layout.aggregators, vms)[0]]) / sum(parts)


def model_size(manifest: Manifest, aggregators: int) -> ModelSize:
    """What a model asks of aggregator VMs.

    Args:
        aggregators: Fewest processes that share it; with more VMs than these, each VM has one.
    """
    counts = range(1, AGGREGATORS_MAX + 1)
    layouts = {n: Layout.of(manifest, n) for n in {max(aggregators, vms) for vms in counts}}
    return ModelSize(
        layouts[aggregators].weights_bytes,
        optimizer_copies(manifest.optimizer),
        tuple(largest_share(layouts[max(aggregators, vms)], vms) for vms in counts),
    )


def record_size(store: Store, job_id: str, model: ModelSize) -> None:
    """Record what a job's model asks of aggregator VMs."""
    data = {"weights_bytes": model.weights_bytes, "copies": model.copies, "shares": list(model.shares)}
    text = f"the model has {size(model.weights_bytes)} of weights"
    store.add_event(job_id, _KIND, text, data=data, replacing=True)


def recorded_size(store: Store, job_id: str) -> ModelSize | None:
    """What a job has recorded; None if that is nothing, or cannot be read."""
    for event in store.events(job_id, limit=1, kind=_KIND):
        try:
            data = event.data
            return ModelSize(
                float(data["weights_bytes"]), int(data["copies"]), tuple(map(float, data["shares"]))
            )
        except (KeyError, TypeError, ValueError):
            return None
    return None
