"""The GPUs of this machine that a job may use, and the job with one process on each at most."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scavenger.cloud.boot.boot import GPU_REQUIREMENT
from scavenger.control.places.needs import Kind, Where, where_workers_are
from scavenger.domain.job import JobSpec
from scavenger.domain.ranges import Accelerators
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.presentation.formatting import plural
from scavenger.train.devices import Devices, Gpu, driver_gpus, find_devices, has_driver
from scavenger.train.engines.gpus import VISIBLE, gpu_names, hidden_in

GPU_BUILD = f"pip uninstall -y tensorflow-cpu tensorflow && pip install '{GPU_REQUIREMENT}'"
"""Replaces TensorFlow by the build that computes on GPUs: both packages install the same files."""


@dataclass(frozen=True, slots=True)
class LocalGpus:
    """GPUs of this machine that a job uses.

    Attributes:
        model: What they are called, such as `NVIDIA L4`.
        names: As CUDA names each; see `gpu_names`.
    """

    model: str
    names: tuple[str, ...]


def gpus_of(
    job: JobSpec,
    kind: Kind,
    environment: Mapping[str, str] = os.environ,
    *,
    driver: Callable[[], bool] = has_driver,
    look: Callable[[], Devices] = find_devices,
    ask: Callable[[], Mapping[str, Gpu]] = driver_gpus,
) -> LocalGpus | None:
    """Find the GPUs of this machine for a job that asks for them; takes seconds if there may be some.

    Args:
        kind: A KerasJob needs those that TensorFlow sees; the code of others brings its own library.
        environment: Of this process; it may restrict which GPUs are visible.
        driver: Whether this machine has a driver.
        look: Asks TensorFlow what it sees.
        ask: Asks the driver what there is.

    Returns:
        None for a job that asks for none, or runs elsewhere.

    Raises:
        ConfigurationError: If there are no such GPUs here, or too few; the message tells what there is.
    """
    wanted = None if job.resources is None else job.resources.accelerators
    if wanted is None or job.infra.capabilities.rents:
        return None
    if not driver():
        raise ConfigurationError(
            f"resources: accelerators: {wanted} asks for GPUs, and this machine has none (no NVIDIA driver); leave "
            "accelerators out to train on its processors",
            key="resources",
        )
    if hidden_in(environment):
        raise ConfigurationError(
            f"resources: accelerators: {wanted}, but {VISIBLE}={environment[VISIBLE]} hides all GPUs: unset it",
            key="resources",
        )
    try:
        if kind is not Kind.KERAS:
            return choose_gpus(wanted, ask(), "nvidia-smi lists")
        devices = look()
    except ScavengerError as error:
        raise ConfigurationError(f"resources: accelerators: {wanted}: {error}", key="resources") from error
    if not devices.cuda:
        raise ConfigurationError(
            f"resources: accelerators: {wanted}: the installed TensorFlow {devices.version} is built for processors "
            f"alone; {GPU_BUILD}",
            key="resources",
        )
    names = gpu_names(len(devices.gpus), environment)
    return choose_gpus(wanted, dict(zip(names, devices.gpus, strict=False)), "TensorFlow sees")


def choose_gpus(wanted: Accelerators, gpus: Mapping[str, Gpu], who: str) -> LocalGpus:
    """Choose as many GPUs as are wanted, of the model that is wanted.

    Args:
        gpus: By the name that CUDA has for each.
        who: Who tells of them, with a verb.

    Raises:
        ConfigurationError: If there are fewer; the message tells what there is.
    """
    fitting = [(gpu.name, name) for name, gpu in gpus.items() if _words(wanted.name) <= _words(gpu.name)]
    if len(fitting) < wanted.count:
        seen = ", ".join(gpu.name for gpu in gpus.values()) or "no GPU"
        raise ConfigurationError(
            f"resources: accelerators: {wanted}, but {who} {seen} on this machine; `scavenger doctor` tells more",
            key="resources",
        )
    chosen = fitting[: wanted.count]
    return LocalGpus(chosen[0][0], tuple(name for _, name in chosen))


def unasked_notes(
    job: JobSpec,
    kind: Kind,
    environment: Mapping[str, str] = os.environ,
    *,
    driver: Callable[[], bool] = has_driver,
    ask: Callable[[], Mapping[str, Gpu]] = driver_gpus,
) -> tuple[str, ...]:
    """What a user should know of a job that asks for no GPU, and whose own code may compute on one; see `gpus_of`."""
    if (
        kind is Kind.KERAS
        or where_workers_are(job) is not Where.HERE
        or hidden_in(environment)
        or not driver()
    ):
        return ()
    try:
        gpus = [gpu.name for gpu in ask().values()]
    except ScavengerError:
        return ()
    if not gpus:
        return ()
    return (
        f"this machine has {plural(len(gpus), 'GPU')}, and each worker sees all: so that each has its own, write "
        f"resources: {{accelerators: {gpus[0].split()[-1]}:{gpus.count(gpus[0])}}}",
    )


def one_process_each(job: JobSpec, gpus: int) -> tuple[JobSpec, tuple[str, ...]]:
    """Limit a job's cluster sizes by the number of GPUs; returns the job, and a note if any were left out.

    Raises:
        ConfigurationError: If no cluster size is left.
    """
    processes, room = job.elastic.processes, gpus // job.elastic.processes
    workers = tuple(k for k in job.search.workers if k <= room)
    least = workers[0] if job.elastic.min is None and workers else job.elastic.min
    each = "one" if processes == 1 else str(processes)
    if not workers or (least is not None and least > room):
        what = f"write workers: 1..{room}" if room else f"ask for {processes} at least"
        raise ConfigurationError(
            f"search.workers: the job asks for {gpus} GPUs, {each} for each worker; {what}",
            key="search.workers",
        )
    most = job.elastic.max
    if workers == job.search.workers and (most is None or most <= room):
        return job, ()
    limited = job.model_copy(
        update={
            "search": job.search.model_copy(update={"workers": workers}),
            "elastic": job.elastic.model_copy(update={"max": None if most is None else min(most, gpus)}),
        }
    )
    own = "a GPU" if processes == 1 else plural(processes, "GPU")
    return limited, (f"clusters of more than {room} workers are left out: each worker has {own} of its own",)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[^a-z0-9]+", name.lower()))
