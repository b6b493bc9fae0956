"""Opens the supervisor of a job's processes: that of a Keras job, of a loop or of a command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from scavenger.control.jobs.prepared import PreparedJob
from scavenger.control.jobs.variables import secrets_of
from scavenger.control.places.needs import Kind
from scavenger.control.places.place import Allocation
from scavenger.domain.environment import plain
from scavenger.domain.job import CheckpointSpec
from scavenger.masking import keep_secret
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.face import JobSupervisor
from scavenger.train.transport.messages.values import CheckpointPlan, RestorePoint


def open_supervisor(
    prepared: PreparedJob,
    resources: Allocation,
    *,
    work_dir: Path,
    checkpoints: str,
    restore: RestorePoint | None,
    clock: Callable[[], float],
) -> JobSupervisor:
    """Open the supervisor of a job's processes, and start none of them.

    Args:
        work_dir: The job's outputs, in a folder that has the name of its id.
        checkpoints: The URL of its checkpoints.
    """
    job, space, job_id = prepared.job, resources.space, work_dir.name
    timeouts = Timeouts(job.limits.start, job.limits.step, job.limits.evaluation, job.limits.callbacks)
    plan = job.checkpoint or CheckpointSpec(path="./checkpoints")
    checkpoint = CheckpointPlan(checkpoints, plan.every, plan.every_steps or 0)
    source = _source_of(prepared, space.offers[0].cpus, job_id)
    # each supervisor is large, and a job needs one of them
    if job.run is not None:
        from scavenger.train.command.job_supervisor import CommandJobSupervisor
        from scavenger.train.command.source import CommandSource

        return CommandJobSupervisor.open(
            CommandSource(
                job.run,
                source,
                job.goal.max_epochs,
                job.goal.metric or "",
                job.goal.target is not None,
                job.elastic.failures.give_up,
            ),
            work_dir=work_dir,
            timeouts=timeouts,
            checkpoint=checkpoint,
            first_batch=space.global_batch_sizes[0],
            restore=restore,
            engine=resources.engine,
            clock=clock,
        )
    if prepared.kind is Kind.LOOP:
        from scavenger.train.custom_loop.job_supervisor import LoopJobSupervisor

        return LoopJobSupervisor.open(
            source,
            work_dir=work_dir,
            timeouts=timeouts,
            restore=restore,
            checkpoint=checkpoint,
            engine=resources.engine,
            clock=clock,
        )
    from scavenger.train.supervisor.supervisor import Supervisor

    return Supervisor.open(
        source,
        work_dir=work_dir,
        timeouts=timeouts,
        aggregators=job.elastic.aggregators,
        apart=resources.sequencer_apart,
        restore=restore,
        checkpoint=checkpoint,
        engine=resources.engine,
        clock=clock,
    )


def _source_of(prepared: PreparedJob, cpus: int, job_id: str) -> JobSource:
    """What its processes train, with its secrets, which are masked in logs from now on."""
    job = prepared.job
    secrets = secrets_of(job, os.environ)
    keep_secret(secrets.values())
    return JobSource(
        "" if job.train is None else str(job.train),
        prepared.folder,
        job.seed,
        cpus,
        job_id,
        data="" if job.data is None else str(job.data),
        params=job.params,
        schedule_batch=job.reference_batch_size if job.elastic.schedule == "samples" else 0,
        gradients=job.elastic.gradients,
        exchange=job.elastic.exchange,
        processes=job.elastic.processes,
        env=plain(job.env),
        secrets=secrets,
    )
