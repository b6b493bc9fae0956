"""Derives the search space from a job file, and checks what it needs of this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from scavenger.cloud.local import LocalCloud
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError, NotSupportedError

_OWN = "scavenger."
"""Begin of the names of modules that are there wherever workers run, as `scavenger.integrations.hypermodel`."""

WORKER_BYTES_MIN = 256 * 2**20
"""Least memory of a worker process that it shares with no other: TensorFlow and Keras, only imported, take 277 MiB."""
CROWDED = 4
"""Workers per processor above which a step only takes longer with every further worker."""


def check_worker_counts(workers: int, cpus: int, memory_bytes: int) -> tuple[str, ...]:
    """Check that worker processes fit on one machine.

    Args:
        workers: The largest cluster size of the search.
        cpus: The machine's processors.

    Returns:
        A warning if there are far more workers than processors.

    Raises:
        ConfigurationError: If the workers need more memory than there is.
    """
    if workers * WORKER_BYTES_MIN > memory_bytes:
        raise ConfigurationError(
            f"search.workers: {workers} workers need at least {workers * WORKER_BYTES_MIN >> 30} GiB of memory, and "
            f"this machine has {memory_bytes >> 30}; {_workers_to_write(cpus)}",
            key="search.workers",
        )
    if workers <= CROWDED * cpus:
        return ()
    return (
        f"search.workers: {workers} workers would share {cpus} processor{'' if cpus == 1 else 's'}, so most "
        f"cluster sizes only make steps longer; {_workers_to_write(cpus)}",
    )


def _workers_to_write(cpus: int) -> str:
    return f"write {f'workers: 1..{cpus}' if cpus > 1 else 'workers: 1'}, or use a cloud"


def check_keras_backend(environ: Mapping[str, str]) -> None:
    """Check that Keras is configured for TensorFlow, the only backend that workers use.

    Args:
        environ: The environment of the command. As in Keras, `KERAS_BACKEND` takes precedence over the file keras.json
            in `KERAS_HOME` or `~/.keras`.

    Raises:
        NotSupportedError: If another backend is configured; the message names the variable or file.
    """
    if "KERAS_BACKEND" in environ:
        backend, place = environ["KERAS_BACKEND"], "the environment variable KERAS_BACKEND"
    else:
        file = Path(environ.get("KERAS_HOME") or Path.home() / ".keras", "keras.json")
        try:
            document = json.loads(file.read_text())
        except (OSError, ValueError):
            return
        backend = document.get("backend", "tensorflow") if isinstance(document, dict) else "tensorflow"
        place = str(file)
    if backend not in ("tensorflow", ""):
        raise NotSupportedError(
            f"{place} sets Keras's backend to {backend!r}, but workers compute with TensorFlow; set it to tensorflow, "
            "or start the command with KERAS_BACKEND=tensorflow; loops in PyTorch or JAX run as a LoopJob "
            "(docs/own-loop.md), and any command as run: (docs/command-jobs.md)"
        )


def check_training_module(job: JobSpec, job_file: Path) -> Path:
    """Check that the modules of the training code and the data exist, but for the project's own; returns their folder.

    Raises:
        ConfigurationError: If the job file's folder has no such module.
    """
    folder = job_file.resolve().parent
    for key, entry in (("train", job.train), ("data", job.data)):
        if entry is None or entry.module.startswith(_OWN):
            continue
        path = folder.joinpath(*entry.module.split("."))
        if not (path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()):
            siblings = sorted(p.stem for p in folder.glob("*.py"))
            close = get_close_matches(entry.module, siblings, n=1)
            hint = f"; did you mean {close[0]}:{entry.name}?" if close else ""
            raise ConfigurationError(
                f"{key} names {entry.module}.py, which is not in {folder}{hint}", key=key
            )
    return folder


def search_space(job: JobSpec, cloud: LocalCloud) -> SearchSpace:
    """The search space of a job on this machine, before the size of its data is known.

    Raises:
        ConfigurationError: If no VM type is suitable.
    """
    offers = _select(job, cloud)
    return SearchSpace(offers, job.worker_counts, job.batch_sizes)


def _select(job: JobSpec, cloud: LocalCloud) -> tuple[Offer, ...]:
    """The VM types that the job file names, or else the first suitable one."""
    wanted, offers = job.resources, cloud.offers(workers_max=job.worker_counts[-1])
    if wanted is None:
        return offers[:1]
    if wanted.vms:
        by_name = {offer.vm: offer for offer in offers}
        missing = [vm for vm in wanted.vms if vm not in by_name]
        if missing:
            raise ConfigurationError(
                f"resources: {job.infra} has no VM type {missing[0]!r}; it has {', '.join(by_name)}",
                key="resources",
            )
        return tuple(by_name[vm] for vm in wanted.vms)
    chosen = tuple(
        offer
        for offer in offers
        if (wanted.cpus is None or wanted.cpus.admits(offer.cpus))
        and (wanted.memory is None or wanted.memory.admits(offer.memory_bytes / 2**30))
        and (wanted.accelerators is None or cloud.gpus)
    )[:1]
    if not chosen:
        raise ConfigurationError(
            f"resources: {job.infra} has no VM type with cpus {wanted.cpus or 'any'}, memory {wanted.memory or 'any'} "
            f"GiB and accelerators {wanted.accelerators or 'none'}; it has {', '.join(o.vm for o in offers)}",
            key="resources",
        )
    return chosen


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
