"""`optimize`, `plan` and `jobs launch`: options that override the job file, the preview of a dry run, and the run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from scavenger.domain.overrides import Overrides
from scavenger.errors import ConfigurationError
from scavenger_cli.options import (
    AuditOption,
    BatchSizesOption,
    BudgetOption,
    DeadlineOption,
    Detach,
    DetachOption,
    DryRunOption,
    EpochsFixedOption,
    Invocation,
    JobFile,
    JobFileOrScript,
    ObjectiveOption,
    Output,
    OutputOption,
    PoolOption,
    PriorityOption,
    QuietOption,
    ScriptArguments,
    StoreOption,
    StrategyOption,
    TargetOption,
    VerboseOption,
    WorkersOption,
    YesOption,
)
from scavenger_cli.ui import console

if TYPE_CHECKING:
    from scavenger.domain.job import JobSpec
    from scavenger.train.engines.warm import WarmServers

_PROFILE = "Rent VMs to profile on?"


def optimize(
    job_file: JobFileOrScript,
    arguments: ScriptArguments = None,
    objective: ObjectiveOption = None,
    strategy: StrategyOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    workers: WorkersOption = None,
    batch_size: BatchSizesOption = None,
    epochs_fixed: EpochsFixedOption = None,
    target: TargetOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    audit: AuditOption = False,
    detach: DetachOption = False,
    pool: PoolOption = None,
    priority: PriorityOption = 0,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Profile a job, choose what it should run on, and train it there; also a Keras or PyTorch script."""
    overrides = Overrides(
        objective, strategy, budget, deadline, workers, batch_size, epochs_fixed, target, pool
    )
    invocation = Invocation(store_url, output.is_json, yes, verbose, quiet)
    how = Detach(priority) if detach else None
    job_file = _job_file(job_file, arguments or (), invocation, run=True, dry_run=dry_run)
    return execute(job_file, overrides, invocation, run=True, dry_run=dry_run, audit=audit, detach=how)


def plan(
    job_file: JobFileOrScript,
    arguments: ScriptArguments = None,
    objective: ObjectiveOption = None,
    strategy: StrategyOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    workers: WorkersOption = None,
    batch_size: BatchSizesOption = None,
    epochs_fixed: EpochsFixedOption = None,
    target: TargetOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Profile a job and predict its time and cost, without running it."""
    overrides = Overrides(objective, strategy, budget, deadline, workers, batch_size, epochs_fixed, target)
    invocation = Invocation(store_url, output.is_json, yes, verbose, quiet)
    job_file = _job_file(job_file, arguments or (), invocation, run=False, dry_run=dry_run)
    return execute(job_file, overrides, invocation, run=False, dry_run=dry_run)


def launch(
    job_file: JobFile,
    yes: YesOption = False,
    detach: DetachOption = False,
    pool: PoolOption = None,
    priority: PriorityOption = 0,
    audit: AuditOption = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Submit a job like `optimize --detach`, and show its log; Ctrl-C ends only the showing."""
    how = Detach(priority, follow=not (detach or output.is_json))
    invocation = Invocation(store_url, output.is_json, yes)
    return execute(job_file, Overrides(pool=pool), invocation, run=True, audit=audit, detach=how)


def _sentence(old_prices: str) -> str:
    """What a question says of old prices before it asks."""
    return f"{old_prices[0].upper()}{old_prices[1:]}. " if old_prices else ""


def _job_file(
    given: Path, arguments: Sequence[str], invocation: Invocation, *, run: bool, dry_run: bool
) -> Path:
    """The job file that is given, or that of the script that is given.

    Raises:
        ScavengerError: The script cannot be a job.
    """
    from scavenger.control.job_file.script_text import read_script

    if given.suffix != ".py":
        _refuse_arguments(given, arguments)
        return given
    if dry_run:
        read_script(given)
        raise ConfigurationError(
            f"--dry-run runs no code of yours, and so no script: `scavenger init --from {given}` writes its job file"
        )
    if run:
        from scavenger_cli.commands.driving import refuse_to_ask_nobody

        refuse_to_ask_nobody(yes=invocation.yes)
    from scavenger.control.jobs.script_job import job_file_of_script

    return job_file_of_script(given, arguments, tell=console.note)


def _refuse_arguments(job_file: Path, arguments: Sequence[str]) -> None:
    """Refuse arguments that nothing takes.

    Raises:
        ConfigurationError: If there are some.
    """
    if arguments:
        raise ConfigurationError(
            f"{shlex.join(arguments)}: arguments are for a script, as scavenger optimize train.py -- --epochs 5; those "
            f"of {job_file} are in its params"
        )


def execute(
    job_file: Path,
    overrides: Overrides,
    invocation: Invocation,
    *,
    run: bool,
    dry_run: bool = False,
    audit: bool = False,
    detach: Detach | None = None,
) -> int:
    """Run the job, or only plan it, or submit it.

    Args:
        run: False to end with the choice.
        detach: How to submit it, to be run without this command; None to run it here.

    Returns:
        The exit code: the report's own.

    Raises:
        ScavengerError: The job cannot start.
    """
    from scavenger.client import server_address

    if invocation.store_url is None and server_address() is not None:
        from scavenger.api.opening import server_source
        from scavenger_cli.commands.remote import RemoteRun

        if (server := server_source(None)) is not None:
            with server as source:
                remote = RemoteRun(source, job_file, overrides, invocation, run=run)
                return remote.preview() if dry_run else remote.submit(detach, audit=audit)
    from scavenger.control.job_file.load import load_job, override_job
    from scavenger.control.jobs.ahead import begin_ahead
    from scavenger.train.engines.warm import WarmServers

    job = override_job(load_job(job_file), overrides.changes())
    with closing(WarmServers(lasting=False)) as warm:
        asks = run and not invocation.yes
        if detach is None and not dry_run and (console.is_interactive() or not asks):
            begin_ahead(job, job_file, warm)  # before what else is imported
        return _execute_here(
            job, job_file, invocation, warm, run=run, dry_run=dry_run, audit=audit, detach=detach
        )


def _execute_here(
    job: JobSpec,
    job_file: Path,
    invocation: Invocation,
    warm: WarmServers,
    *,
    run: bool,
    dry_run: bool,
    audit: bool,
    detach: Detach | None,
) -> int:
    """See `execute`; this process leads the job, or submits it.

    Args:
        job: As in its file, with what the options override.
        warm: What its workers are forked from.
    """
    from scavenger.api.preview import earlier_of, preview_of
    from scavenger.control.jobs.prepared import prepare_job
    from scavenger_cli.commands.driving import drive, refuse_to_ask_nobody
    from scavenger_cli.commands.previewing import show_preview

    prepared = prepare_job(job, job_file, warm=warm)
    earlier = None
    if prepared.place.aggregators is not None or prepared.place.rents or dry_run:
        from scavenger.store import Store
        from scavenger.store.database import is_there

        if prepared.place.aggregators is not None or is_there(invocation.store_url):
            with Store.open(invocation.store_url) as store:
                prepared = prepared.settled(store)
                earlier = earlier_of(store, prepared, user=None)
    if dry_run:
        shown = preview_of(prepared, run=run, yes=invocation.yes, earlier=earlier)
        show_preview(shown, as_json=invocation.as_json)
        return 0
    rents, on_vm = prepared.place.rents, run and prepared.place.leader is not None
    if run or rents:
        refuse_to_ask_nobody(yes=invocation.yes)
    accepted = prepared if invocation.yes else prepared.with_old_prices()  # by the answer below
    accepted.place.check_prices()
    if on_vm:
        from scavenger.control.leading.start import LeaderStart, check_start

        check_start(LeaderStart(accepted))
    if rents and not invocation.yes:
        shown = preview_of(prepared, run=run, yes=invocation.yes, earlier=earlier)
        show_preview(shown, stream=sys.stderr)
        question = "Rent VMs, and run the job there without another question?" if on_vm else _PROFILE
        if not console.ask(f"{_sentence(prepared.place.old_prices)}{question}"):
            return 0
    prepared = accepted
    if on_vm:
        from scavenger_cli.commands.leader import lead_on_vm

        return lead_on_vm(prepared, invocation, detach=detach, audit=audit)
    from scavenger.control.jobs.job_run import JobRun

    if detach is not None:
        from scavenger_cli.commands.detaching import detach_job

        return detach_job(prepared, detach, invocation, audit=audit)
    return drive(
        lambda store, observer, confirm: JobRun(
            prepared, store=store, observer=observer, run=run, confirm=confirm, audit=audit
        ),
        invocation,
        ask=run and not invocation.yes,
    )
