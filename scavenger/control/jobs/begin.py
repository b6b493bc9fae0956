"""Builds a job's parts without starting any of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scavenger import logs
from scavenger.control.jobs.prepared import PreparedJob
from scavenger.control.jobs.resumption import Resumption, checkpoint_url
from scavenger.control.jobs.running_job import JobAttempt, Parts
from scavenger.control.jobs.variables import secrets_of
from scavenger.control.jobs.workflow import Confirm, JobWorkflow
from scavenger.control.places.needs import Kind
from scavenger.control.places.place import Allocation, JobContext
from scavenger.control.training.audit import AUDIT_FILE
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import EarlierAttempts
from scavenger.control.training.journal import Journal, Journals
from scavenger.control.training.limits import Limits
from scavenger.control.training.operations import OperationHandler
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.domain.environment import plain
from scavenger.domain.job import CheckpointSpec
from scavenger.domain.report import Noted, Observer, PhaseChanged
from scavenger.errors import NotSupportedError
from scavenger.masking import keep_secret
from scavenger.policy import learning_rate_scale
from scavenger.store import Store
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.names import partial_model
from scavenger.train.supervisor.face import JobSupervisor
from scavenger.train.transport.messages.values import CheckpointPlan, RestorePoint


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a job is run.

    Attributes:
        run: False for `plan`, which ends with the choice.
        confirm: Asked before the chosen configuration is paid for; None to go ahead.
        resumed: Checkpoint, time, cost and progress of earlier attempts; None for a new job.
        audit: Whether to record which worker computed which samples, see `scavenger.control.training.audit`.
        clock: Monotonic clock, seconds.
    """

    run: bool
    confirm: Confirm | None
    resumed: Resumption | None
    audit: bool
    clock: Callable[[], float]


def open_journals(prepared: PreparedJob, options: RunOptions, work_dir: Path) -> Journals:
    """Open the job's journals; a resumed job appends to the journals of the earlier attempt.

    Raises:
        OSError: If a journal cannot be written.
    """
    job = prepared.job
    if options.audit and job.run is not None:
        raise NotSupportedError(
            "--audit: a command reads its samples itself, so which were used is not known"
        )
    step = None if options.resumed is None else options.resumed.before.step

    def opened(name: str) -> Journal:
        return Journal(work_dir / name, resumed_step=step, job_id=work_dir.name, job=job.name, seed=job.seed)

    measurements = opened("measurements.jsonl")
    return Journals(measurements, opened(AUDIT_FILE) if options.audit else None)


@dataclass(frozen=True, slots=True)
class AttemptInputs:
    """Inputs of one attempt at a job.

    Attributes:
        observer: The user's observer; the recorder passes every event on to it.
        started_at: Clock reading when the attempt began.
        pause: Waits for a number of seconds, or raises `Interrupted` if the job is to stop.
    """

    prepared: PreparedJob
    options: RunOptions
    store: Store
    observer: Observer
    recorder: Recorder
    journals: Journals
    work_dir: Path
    started_at: float
    pause: Callable[[float], None]


def begin_job(attempt: AttemptInputs, *, stop: Callable[[str], None]) -> JobAttempt:
    """Build a job's parts; `JobAttempt.run` starts them.

    Args:
        stop: Ends the job in an orderly way, for a given reason.

    Raises:
        ScavengerError: If the job cannot run on the infrastructure that its file names.
    """
    prepared, recorder = attempt.prepared, attempt.recorder
    count = prepared.place.space.workers[0]
    workers = "1 worker" if count == 1 else f"{count} workers"
    recorder.on_event(PhaseChanged("starting", f"{workers} on {prepared.job.infra}"))
    warnings: list[str] = []

    def warn(message: str) -> None:
        warnings.append(message)
        recorder.on_event(Noted("warning", message))

    before = _before(attempt)
    resources = prepared.place.allocate(
        JobContext(
            attempt.store,
            recorder.record,
            prepared.folder,
            prepared.folder / prepared.job.output,
            inform=lambda message: recorder.on_event(Noted("info", message)),
            warn=warn,
            clock=attempt.options.clock,
            pause=attempt.pause,
        )
    )
    try:
        return _build(attempt, resources, before, warnings=warnings, stop=stop)
    except BaseException:
        resources.close()
        raise


def _before(attempt: AttemptInputs) -> EarlierAttempts:
    """What earlier attempts have come to; of those of a job that begins again, what they have cost."""
    resumed, record = attempt.options.resumed, attempt.recorder.record
    if resumed is not None:
        return resumed.before
    if record.attempts > 1:
        return EarlierAttempts(cost_usd=attempt.store.spent_usd(record.id))
    return EarlierAttempts()


def _build(
    attempt: AttemptInputs,
    resources: Allocation,
    before: EarlierAttempts,
    *,
    warnings: Sequence[str],
    stop: Callable[[str], None],
) -> JobAttempt:
    prepared, options, recorder = attempt.prepared, attempt.options, attempt.recorder
    job, resumed, space = prepared.job, options.resumed, resources.space
    checkpoints = (
        checkpoint_url(job.checkpoint, prepared.folder, attempt.work_dir) if resumed is None else resumed.url
    )
    logs.set_job(attempt.recorder.job_id)
    supervisor = _supervisor(attempt, resources, checkpoints)
    # left by an attempt that was killed while it saved the model
    partial_model(attempt.work_dir / supervisor.model_file).unlink(missing_ok=True)
    trainer = Trainer(
        supervisor,
        goal=Goal(job.goal),
        offers=space.offers,
        meter=resources.meter(supervisor),
        limits=Limits(job.constraints.deadline, job.constraints.budget),
        journal=attempt.journals.measurements,
        observer=recorder,
        started_at=attempt.started_at,
        on_tick=lambda: running.tick(),
        before=before,
        lr_scale=lambda batch, noise: learning_rate_scale(
            job.elastic.lr_scaling, batch, space.global_batch_sizes[0], noise
        ),
        give_up=job.elastic.failures.give_up,
        audit=attempt.journals.audit,
        clock=options.clock,
    )
    trainer.terms = lambda: resources.terms(trainer)
    trainer.aggregator_vms = lambda: resources.aggregator_vms(trainer)
    workflow = JobWorkflow(
        trainer,
        job,
        space,
        store=attempt.store,
        recorder=recorder,
        hardware=prepared.place.hardware,
        folder=prepared.folder,
        run=options.run,
        confirm=options.confirm,
        at_end=lambda error: running.end_at_once(error),
        resumed=resumed,
    )
    operations = OperationHandler(
        attempt.store,
        recorder.job_id,
        keep=recorder.keep,
        workers=job.elastic_range,
        batch=workflow.batch_at,
        stop=lambda reason, save: running.stop_as_asked(reason, save),
        measured=recorder.measured,
        policy=job.elastic.policy,
        folder=attempt.work_dir,
    )
    if not options.run:
        operations.refusing = "this is a plan, which ends with the choice; it can only be stopped"
    running = JobAttempt(
        Parts(recorder, attempt.journals, resources, supervisor, trainer, workflow, operations),
        observer=attempt.observer,
        checkpoints=checkpoints,
        warnings=warnings,
        stop=stop,
        clock=options.clock,
    )
    return running


def _supervisor(attempt: AttemptInputs, resources: Allocation, checkpoints: str) -> JobSupervisor:
    """Build the supervisor of the job's processes, without starting them; `checkpoints` is their URL."""
    prepared, options, work_dir = attempt.prepared, attempt.options, attempt.work_dir
    job, resumed, space, job_id = prepared.job, options.resumed, resources.space, attempt.recorder.job_id
    restore = None if resumed is None else RestorePoint(resumed.url, resumed.folder)
    secrets = secrets_of(job, os.environ)
    keep_secret(secrets.values())
    timeouts = Timeouts(job.limits.start, job.limits.step, job.limits.evaluation, job.limits.callbacks)
    plan = job.checkpoint or CheckpointSpec(path="./checkpoints")
    checkpoint = CheckpointPlan(checkpoints, plan.every, plan.every_steps or 0)
    # each supervisor is large, and a job needs one of them
    if job.run is not None:
        from scavenger.train.command.job_supervisor import CommandJobSupervisor
        from scavenger.train.command.source import CommandSource

        return CommandJobSupervisor.open(
            CommandSource(
                job.run,
                prepared.folder,
                job_id,
                job.seed,
                space.offers[0].cpus,
                job.goal.max_epochs,
                job.goal.metric or "",
                job.goal.target is not None,
                job.elastic.failures.give_up,
                job.params,
                plain(job.env),
                secrets,
            ),
            work_dir=work_dir,
            timeouts=timeouts,
            checkpoint=checkpoint,
            first_batch=space.global_batch_sizes[0],
            restore=restore,
            engine=resources.engine,
            clock=options.clock,
        )
    source = JobSource(
        str(job.train),
        prepared.folder,
        job.seed,
        space.offers[0].cpus,
        job_id,
        data="" if job.data is None else str(job.data),
        params=job.params,
        schedule_batch=job.reference_batch_size if job.elastic.schedule == "samples" else 0,
        env=plain(job.env),
        secrets=secrets,
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
            clock=options.clock,
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
        clock=options.clock,
    )
