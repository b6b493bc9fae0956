"""Builds a job's supervisor and trainer from its specification."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.control.jobs.needs import Kind
from scavenger.control.jobs.training_code import kind_of
from scavenger.control.jobs.variables import secrets_of
from scavenger.control.training.cost_meter import CostMeter
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import EarlierAttempts
from scavenger.control.training.journal import Journal
from scavenger.control.training.limits import Limits
from scavenger.control.training.trainer import Trainer
from scavenger.domain.command import RunSpec
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.environment import plain
from scavenger.domain.job import CheckpointSpec, JobSpec
from scavenger.domain.report import Observer
from scavenger.masking import keep_secret
from scavenger.policy import learning_rate_scale
from scavenger.train.engines.base import Engine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.face import JobSupervisor
from scavenger.train.transport.messages.values import CheckpointPlan, RestorePoint

if TYPE_CHECKING:
    from scavenger.train.command.source import CommandSource


def supervisor_of(
    job: JobSpec,
    space: SearchSpace,
    *,
    job_id: str,
    folder: Path,
    work_dir: Path,
    checkpoints: str,
    restore: RestorePoint | None,
    engine: Callable[[Path, int], Engine] | None,
    apart: bool = False,
    clock: Callable[[], float],
) -> JobSupervisor:
    """Build the supervisor of the job's processes, without starting them.

    Args:
        job_id: Id used in log records.
        engine: Starts the processes; None for the engine that the job file names.
        apart: See `Supervisor.open`.
        folder: Folder of the training module.
        work_dir: The job's output folder.
        checkpoints: URL of the checkpoints.
        restore: The checkpoint to restore; None for a new job.
    """
    secrets = secrets_of(job, os.environ)
    keep_secret(secrets.values())
    timeouts = Timeouts(job.limits.start, job.limits.step, job.limits.evaluation, job.limits.callbacks)
    plan = job.checkpoint or CheckpointSpec(path="./checkpoints")
    checkpoint = CheckpointPlan(checkpoints, plan.every, plan.every_steps or 0)
    # each is large, and a job needs one of them
    if job.run is not None:
        from scavenger.train.command.job_supervisor import CommandJobSupervisor

        return CommandJobSupervisor.open(
            _command_of(job, job.run, space.offers[0].cpus, job_id, folder, secrets),
            work_dir=work_dir,
            timeouts=timeouts,
            checkpoint=checkpoint,
            first_batch=space.global_batch_sizes[0],
            restore=restore,
            engine=engine,
            clock=clock,
        )
    source = _module_of(job, space.offers[0].cpus, job_id, folder, secrets)
    if kind_of(job, folder) is Kind.LOOP:
        from scavenger.train.custom_loop.job_supervisor import LoopJobSupervisor

        return LoopJobSupervisor.open(
            source,
            work_dir=work_dir,
            timeouts=timeouts,
            restore=restore,
            checkpoint=checkpoint,
            engine=engine,
            clock=clock,
        )
    from scavenger.train.supervisor.supervisor import Supervisor

    if engine is None:
        from scavenger.train.engines.ray.engine import engine_maker

        engine = engine_maker(job.engine)
    return Supervisor.open(
        source,
        work_dir=work_dir,
        timeouts=timeouts,
        aggregators=job.elastic.aggregators,
        apart=apart,
        restore=restore,
        checkpoint=checkpoint,
        engine=engine,
        clock=clock,
    )


def _command_of(
    job: JobSpec, run: RunSpec, threads: int, job_id: str, folder: Path, secrets: Mapping[str, str]
) -> CommandSource:
    from scavenger.train.command.source import CommandSource

    return CommandSource(
        run,
        folder,
        job_id,
        job.seed,
        threads,
        job.goal.max_epochs,
        job.goal.metric or "",
        job.goal.target is not None,
        job.elastic.failures.give_up,
        job.params,
        plain(job.env),
        secrets,
    )


def _module_of(
    job: JobSpec, threads: int, job_id: str, folder: Path, secrets: Mapping[str, str]
) -> JobSource:
    return JobSource(
        str(job.train),
        folder,
        job.seed,
        threads,
        job_id,
        data="" if job.data is None else str(job.data),
        params=job.params,
        schedule_batch=job.reference_batch_size if job.elastic.schedule == "samples" else 0,
        env=plain(job.env),
        secrets=secrets,
    )


def trainer_of(
    supervisor: JobSupervisor,
    job: JobSpec,
    space: SearchSpace,
    *,
    goal: Goal,
    journal: Journal,
    audit: Journal | None,
    observer: Observer,
    started_at: float,
    on_tick: Callable[[], None],
    before: EarlierAttempts,
    meter: CostMeter,
    clock: Callable[[], float],
) -> Trainer:
    """Build the trainer that controls the supervisor within the job's limits; see `Trainer` for the arguments."""
    reference = space.global_batch_sizes[0]
    return Trainer(
        supervisor,
        goal=goal,
        offers=space.offers,
        meter=meter,
        limits=Limits(job.constraints.deadline, job.constraints.budget),
        journal=journal,
        observer=observer,
        started_at=started_at,
        on_tick=on_tick,
        before=before,
        lr_scale=lambda batch, noise: learning_rate_scale(job.elastic.lr_scaling, batch, reference, noise),
        give_up=job.elastic.failures.give_up,
        audit=audit,
        clock=clock,
    )
