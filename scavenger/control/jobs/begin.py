"""Builds a job's parts without starting any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scavenger import logs
from scavenger.control.jobs.platform import PreparedJob, Resources
from scavenger.control.jobs.resumption import Resumption, checkpoint_url
from scavenger.control.jobs.running_job import JobAttempt, Parts
from scavenger.control.jobs.wiring import supervisor_of, trainer_of
from scavenger.control.jobs.workflow import Confirm, JobWorkflow
from scavenger.control.training.audit import AUDIT_FILE
from scavenger.control.training.goal import Goal
from scavenger.control.training.history import EarlierAttempts
from scavenger.control.training.journal import Journal, Journals
from scavenger.control.training.operations import OperationHandler
from scavenger.control.training.recorder import Recorder
from scavenger.domain.report import Noted, Observer, PhaseChanged
from scavenger.errors import NotSupportedError
from scavenger.store import Store
from scavenger.train.names import partial_model
from scavenger.train.transport.messages.values import RestorePoint


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
        work_dir: The job's output folder.
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
    count = prepared.platform.space.workers[0]
    workers = "1 worker" if count == 1 else f"{count} workers"
    recorder.on_event(PhaseChanged("starting", f"{workers} on {prepared.job.infra}"))
    warnings: list[str] = []

    def warn(message: str) -> None:
        warnings.append(message)
        recorder.on_event(Noted("warning", message))

    before = _before(attempt)
    resources = prepared.platform.allocate(
        attempt.store,
        recorder.record,
        folder=prepared.folder,
        outputs=prepared.folder / prepared.job.output,
        inform=lambda message: recorder.on_event(Noted("info", message)),
        warn=warn,
        clock=attempt.options.clock,
        pause=attempt.pause,
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
    resources: Resources,
    before: EarlierAttempts,
    *,
    warnings: Sequence[str],
    stop: Callable[[str], None],
) -> JobAttempt:
    prepared, options, recorder = attempt.prepared, attempt.options, attempt.recorder
    job, resumed = prepared.job, options.resumed
    checkpoints = (
        checkpoint_url(job.checkpoint, prepared.folder, attempt.work_dir) if resumed is None else resumed.url
    )
    logs.set_job(attempt.recorder.job_id)
    supervisor = supervisor_of(
        job,
        resources.space,
        job_id=attempt.recorder.job_id,
        folder=prepared.folder,
        work_dir=attempt.work_dir,
        checkpoints=checkpoints,
        restore=None if resumed is None else RestorePoint(resumed.url, resumed.folder),
        engine=resources.engine,
        apart=resources.sequencer_apart,
        clock=options.clock,
    )
    # left by an attempt that was killed while it saved the model
    partial_model(attempt.work_dir / supervisor.model_file).unlink(missing_ok=True)
    trainer = trainer_of(
        supervisor,
        job,
        resources.space,
        goal=Goal(job.goal),
        journal=attempt.journals.measurements,
        audit=attempt.journals.audit,
        observer=recorder,
        started_at=attempt.started_at,
        on_tick=lambda: running.tick(),
        before=before,
        meter=resources.meter(supervisor),
        clock=options.clock,
    )
    trainer.terms = lambda: resources.terms(trainer)
    trainer.aggregator_vms = lambda: resources.aggregator_vms(trainer)
    workflow = JobWorkflow(
        trainer,
        job,
        resources.space,
        store=attempt.store,
        recorder=recorder,
        cloud=prepared.platform.cloud,
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
