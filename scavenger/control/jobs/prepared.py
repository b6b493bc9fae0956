"""Prepares a job: checks its file as far as possible, and finds the place where it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.control.job_file.load import place_of
from scavenger.control.jobs.variables import check_secrets, settled_variables
from scavenger.control.places.gpus import gpus_of, one_process_each, unasked_notes
from scavenger.control.places.kinds import check_code, kind_of
from scavenger.control.places.needs import Kind, Where, check_needs, where_workers_are
from scavenger.control.places.place import Place
from scavenger.control.places.this_machine import ThisMachine
from scavenger.control.settings import settings_of
from scavenger.control.training.goal import Goal
from scavenger.domain.command import RunSpec
from scavenger.domain.job import CheckpointSpec, JobSpec
from scavenger.errors import ConfigurationError, JobFileError
from scavenger.store import Store
from scavenger.train.checkpoints.files import check_location, check_storage, local_path
from scavenger.train.engines.warm import WarmServers
from scavenger.train.training_folder import programs

if TYPE_CHECKING:
    from scavenger.control.places.vms import RentedVms
    from scavenger.control.provisioning.fleet_keeping import Keeper

_RENTED = (Where.VMS, Where.PODS, Where.RAY_PODS)
"""The places where machines are rented; all others are this one."""
_PROGRAMS = (".py", ".sh")
_PROGRAM_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job whose file has passed every check that is possible before the start."""

    job_file: Path
    folder: Path
    place: Place

    @property
    def job(self) -> JobSpec:
        """The job, with what its place limits."""
        return self.place.job

    @property
    def kind(self) -> Kind:
        """The kind of its training code."""
        return kind_of(self.job, self.folder)

    def with_old_prices(self) -> PreparedJob:
        """See `Place.with_old_prices`."""
        return replace(self, place=self.place.with_old_prices())

    def settled(self, store: Store) -> PreparedJob:
        """See `Place.settled`."""
        place = self.place.settled(store)
        return self if place is self.place else replace(self, place=place)


def prepare_job(
    job: JobSpec,
    job_file: Path,
    *,
    warm: WarmServers | None = None,
    kept: Keeper | None = None,
    environ: Mapping[str, str] = os.environ,
) -> PreparedJob:
    """Check a job as far as possible before it starts; starts nothing and spends nothing.

    Args:
        job_file: Its file, next to which its code is.
        warm: Fork servers that jobs of this program share on this machine; None: the job has its own.
        kept: Keeps VMs between jobs of a study or a pool; None: those of the job end with it.
        environ: The environment of who begins or submits it.

    Raises:
        ConfigurationError: If the job file asks for something that does not exist; the message begins with the place
            in the file.
    """
    folder = job_file.resolve().parent
    try:
        check_secrets(job, environ)
        place = _place(settled_variables(job, environ), folder, warm, kept)
    except ConfigurationError as error:
        if not error.key or isinstance(error, JobFileError):
            raise
        raise type(error)(f"{place_of(error.key, job, job_file)}: {error}", key=error.key) from error
    return PreparedJob(job_file, folder, place)


def _place(job: JobSpec, folder: Path, warm: WarmServers | None, kept: Keeper | None) -> Place:
    kind, where = kind_of(job, folder), where_workers_are(job)
    check_needs(job, kind)
    Goal(job.goal).check_direction()
    check_code(job, kind, folder)
    check_writable(folder / job.output, "output")
    job = with_checkpoints(job)
    if job.checkpoint is not None:
        check_location(job.checkpoint.path)
        path = job.checkpoint.path
        at = local_path(path if "://" in path else str(folder / Path(path).expanduser()))
        if at is not None:
            check_writable(Path(at), "checkpoint.path")
        elif where not in _RENTED:  # VMs have identities of their own
            check_storage(path)
    if where in _RENTED:
        return _rented(job, kind, where, folder, kept)
    if (gpus := gpus_of(job, kind)) is None:
        return ThisMachine(job, notes=unasked_notes(job, kind), warm=warm)
    limited, left_out = one_process_each(job, len(gpus.names))
    return ThisMachine(limited, gpus, left_out, warm=warm)


def _rented(job: JobSpec, kind: Kind, where: Where, folder: Path, kept: Keeper | None) -> RentedVms:
    # a runner of a job on this machine begins a third sooner without what rents
    from scavenger.control.places.pods import RayPods, RentedPods
    from scavenger.control.places.vms import RentedVms
    from scavenger.control.provisioning.price_refresh import refresh_if_old

    places = {Where.VMS: RentedVms, Where.PODS: RentedPods, Where.RAY_PODS: RayPods}
    notes = (*refresh_if_old(job), *(() if job.run is None else unkept_notes(job.run, folder)))
    return places[where](job, kind=kind, notes=notes, kept=kept)


def check_writable(path: Path, key: str) -> None:
    """Check that a folder can be made and written to; makes nothing.

    Args:
        path: An absolute path.
        key: The key of the job file that names it.

    Raises:
        ConfigurationError: If it cannot.
    """
    place = path
    while not os.path.lexists(place):  # False also for what may not be looked at
        place = place.parent
    if not place.is_dir():
        raise ConfigurationError(f"{key}: {place} is not a folder; name another place", key=key)
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"{key}: {place} cannot be written to; run `chmod u+wx {place}`, or name another folder", key=key
        )


def with_checkpoints(job: JobSpec) -> JobSpec:
    """The job, with the place of checkpoints that the settings of its cloud name, if its file has none.

    Raises:
        JobFileError: If the settings are wrong.
    """
    if job.checkpoint is not None or not job.infra.capabilities.rents:
        return job
    place = settings_of(job.infra).checkpoints
    return job.model_copy(update={"checkpoint": CheckpointSpec(path=place)}) if place else job


def unkept_notes(run: RunSpec, folder: Path) -> tuple[str, ...]:
    """What a user should know of a command on VMs that names no folder from which its checkpoints are carried.

    It is no refusal: a program that comes with the image of the VMs may find the folder in its environment.

    Args:
        folder: The job's folder, with the programs that are sent to VMs.
    """
    if "checkpoint_dir" in run.names or any(map(_names_scavenger, programs(folder, _PROGRAMS))):
        return ()
    return (
        "run: neither names {checkpoint_dir} nor starts a program of this folder that reports by scavenger.sdk: what "
        "it saves elsewhere on its VM is lost with the VM, and it begins again from its first step",
    )


def _names_scavenger(program: Path) -> bool:
    return (
        program.stat().st_size <= _PROGRAM_BYTES_MAX
        and "scavenger" in program.read_text(errors="replace").lower()
    )
