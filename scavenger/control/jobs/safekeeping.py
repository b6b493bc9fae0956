"""Where a job on a cloud keeps its checkpoints by default, and whether a command's leave its VM at all."""

from __future__ import annotations

from pathlib import Path

from scavenger.control.settings import settings_of
from scavenger.domain.command import RunSpec
from scavenger.domain.job import CheckpointSpec, JobSpec
from scavenger.train.training_folder import programs

_PROGRAMS = (".py", ".sh")
_PROGRAM_BYTES_MAX = 1 << 20


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
        run: The command.
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
