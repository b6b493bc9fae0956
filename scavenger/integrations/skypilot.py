"""SkyPilot [1]_: the time of a task by a stored model, so that its optimizer compares what the training takes::

    task = sky.Task(run="python train.py", num_nodes=4)
    task.set_resources({sky.Resources(infra="aws", instance_type=vm) for vm in ("m7i.xlarge", "m7i.2xlarge")})
    task.set_time_estimator(time_estimator(client, "digits-cnn", num_nodes=4, batch_size=256))

References:
    .. [1] Yang et al., "SkyPilot: An Intercloud Broker for Sky Computing", 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from scavenger.domain.configuration import Configuration, Offer
from scavenger.errors import ConfigurationError
from scavenger.models.job_model import JobModel

if TYPE_CHECKING:
    from scavenger.pipelines.client import Client

__all__ = ["time_estimator"]

_NO_LIMIT = 1 << 62
"""Memory of a VM that SkyPilot has chosen: whether the batch fits is its user's matter."""


def time_estimator(client: Client, model: str, *, num_nodes: int, batch_size: int) -> Callable[[Any], int]:
    """What `sky.Task.set_time_estimator` takes: seconds of a training on given resources.

    Args:
        client: Has the model.
        model: The name of the job that fitted it, whose newest models are taken, one for each VM type; or an id, or the
            beginning of one.
        num_nodes: As of the task, since SkyPilot asks by the resources of one node. Each has a worker, or one for each
            of its accelerators.
        batch_size: Global batch size of the training, samples.

    Returns:
        A function of `sky.Resources`. It raises `ConfigurationError` for a VM type, a number of workers or a batch size
        outside what was measured, since SkyPilot would choose by a guess.

    Raises:
        ConfigurationError: If there is no such model, or none that this version can read or that knows its epochs.
    """
    known = _models(client, model)

    def seconds(resources: Any) -> int:
        vm = resources.instance_type
        if vm is None:
            raise ConfigurationError(
                f"the resources {resources} name no VM type, by which the model of {model} predicts; "
                "set instance_type"
            )
        found = known.get(vm)
        if found is None:
            raise ConfigurationError(
                f"the model of {model} was measured on {', '.join(sorted(known))}, not on {vm}; plan the job there, "
                "or leave this VM type out"
            )
        per_node = max(1, math.ceil(sum((resources.accelerators or {}).values())))
        return _seconds(found, vm, num_nodes * per_node, batch_size, per_node, model)

    return seconds


def _seconds(model: JobModel, vm: str, workers: int, batch_size: int, per_node: int, name: str) -> int:
    try:
        where = Configuration(vm, workers, batch_size)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    cpus = next(one.cpus for one in model.vms if one.vm == vm)
    offer = Offer("", "", vm, 0.0, "SkyPilot's", cpus, _NO_LIMIT, workers_per_vm=per_node)
    predicted = model.predict(offer, np.array([workers]), np.array([batch_size]))
    if predicted.extrapolated[0]:
        law = next(one.parallel for one in model.vms if one.vm == vm)
        batches = model.statistical
        raise ConfigurationError(
            f"the model of {name} does not cover {where}: it was measured with {law.workers_min} to {law.workers_max} "
            f"workers and batch sizes from {batches.batch_min:g} to {batches.batch_max:g}; plan the job with these"
        )
    return math.ceil(float(predicted.time_s[0]))


def _models(client: Client, key: str) -> dict[str, JobModel]:
    """The newest model for each VM type of those that a key names.

    Raises:
        ConfigurationError: If there is none that can be used.
    """
    stored = client.models()
    records = [record for record in stored if record.job_name == key]
    records = records or [record for record in stored if len(key) >= 4 and record.id.startswith(key)]
    if not records:
        names = sorted({record.job_name for record in stored if record.job_name is not None})
        raise ConfigurationError(
            f"there is no stored model of {key}; "
            + (f"there are some of {', '.join(names)}" if names else "plan the job first")
        )
    found: dict[str, JobModel] = {}
    reasons = []
    for record in records:  # newest first
        try:
            model = JobModel.from_dict(client.model(record.id).model)
        except ValueError as error:
            reasons.append(f"model {record.id[:8]} cannot be read: {error}")
            continue
        if model.relative_only:
            reasons.append(f"model {record.id[:8]} does not know how many epochs the training takes")
            continue
        for vm in model.vms:
            found.setdefault(vm.vm, model)
    if not found:
        raise ConfigurationError(f"no stored model of {key} can be used: {'; '.join(reasons)}")
    return found
