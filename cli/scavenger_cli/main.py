"""The `scavenger` command: arguments and options. The code of a command is imported only when it runs."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from scavenger import logs
from scavenger.errors import Interrupted, ScavengerError
from scavenger.masking import mask
from scavenger.private_files import make_private_folder
from scavenger.version import __version__
from scavenger_cli import (
    beginning,
    catalog,
    clearing,
    clustering,
    costing,
    imaging,
    leading,
    listing,
    modelling,
    operating,
    pooling,
    serving,
    serving_api,
    storing,
)
from scavenger_cli.options import (
    AuditOption,
    BatchSizesOption,
    BudgetOption,
    CurveFormat,
    DatasetSizeOption,
    DeadlineOption,
    DetachOption,
    DryRunOption,
    InfraOption,
    JobFile,
    JobKey,
    ListedJobKey,
    ObjectiveName,
    ObjectiveOption,
    OutOption,
    Output,
    OutputOption,
    PriceOption,
    Pricing,
    QuietOption,
    StateOption,
    StoreOption,
    Strategy,
    StrategyOption,
    VerboseOption,
    WorkersOption,
    WorkloadOption,
    YesOption,
    finish,
)
from scavenger_cli.ui import console

USAGE_ERROR = 2


_settings = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_settings,
    help="Decide which machines a training job should run on, and run it there.",
)
schema = typer.Typer(
    rich_markup_mode=None, context_settings=_settings, help="Print the schemas of Scavenger's files."
)
app.add_typer(modelling.app, name="models")
app.add_typer(catalog.app, name="catalog")
app.add_typer(listing.app, name="jobs")
app.add_typer(pooling.app, name="aggregators")
app.add_typer(schema, name="schema")
app.add_typer(storing.app, name="store")
app.add_typer(serving_api.app, name="api")
app.add_typer(leading.app, name="leader")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scavenger {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    _help_unless_command(context)


@schema.callback(invoke_without_command=True)
def _schema(context: typer.Context) -> None:
    _help_unless_command(context)


def _help_unless_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def optimize(
    job_file: JobFile,
    objective: ObjectiveOption = None,
    strategy: StrategyOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    workers: WorkersOption = None,
    batch_size: BatchSizesOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    audit: AuditOption = False,
    detach: DetachOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Profile a job, choose what it should run on, and train it there."""
    overrides = _given(
        objective, strategy, budget=budget, deadline=deadline, workers=workers, batch_size=batch_size
    )
    _execute(
        job_file,
        overrides,
        yes,
        dry_run,
        store,
        output,
        run=True,
        audit=audit,
        detach=detach,
        verbose=verbose,
        quiet=quiet,
    )


@app.command()
def plan(
    job_file: JobFile,
    objective: ObjectiveOption = None,
    strategy: StrategyOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    workers: WorkersOption = None,
    batch_size: BatchSizesOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Profile a job and predict its time and cost, without running it."""
    overrides = _given(
        objective, strategy, budget=budget, deadline=deadline, workers=workers, batch_size=batch_size
    )
    _execute(job_file, overrides, yes, dry_run, store, output, run=False, verbose=verbose, quiet=quiet)


def _given(
    objective: ObjectiveName | None, strategy: Strategy | None, **texts: str | None
) -> dict[str, str | None]:
    """The options that override the job file, by the names of `Overrides`."""
    names = {"objective": objective and objective.value, "strategy": strategy and strategy.value}
    return {**names, **texts}


def _execute(
    job_file: Path,
    overrides: dict[str, str | None],
    yes: bool,
    dry_run: bool,
    store: str | None,
    output: Output,
    *,
    run: bool,
    audit: bool = False,
    detach: bool = False,
    verbose: bool = False,
    quiet: bool = False,
) -> None:
    def command() -> int:
        from scavenger_cli.commands.run import Detach, Overrides, execute

        return execute(
            job_file,
            run=run,
            overrides=Overrides(**overrides),
            yes=yes,
            dry_run=dry_run,
            store_url=store,
            as_json=output is Output.JSON,
            audit=audit,
            verbose=verbose,
            quiet=quiet,
            detach=Detach() if detach else None,
        )

    finish(output, command)


@app.command()
def curves(
    job: JobKey = None,
    form: Annotated[
        CurveFormat | None,
        typer.Option("--format", "-f", help="Output format. Default: by the ending of FILE, else terminal."),
    ] = None,
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="FILE", help="Past measurements instead of a job: CSV, or from `models fit`."
        ),
    ] = None,
    workload: WorkloadOption = None,
    price: PriceOption = None,
    dataset_size: DatasetSizeOption = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="With --from: workers to predict, such as 1..64 or 1,2,4."),
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="With --from: global batch sizes to predict, such as 64,128,256."),
    ] = None,
    why: Annotated[
        tuple[int, int] | None,
        typer.Option(
            metavar="K B",
            help="Where the prediction of K workers and batch B comes from: law, points, parts.",
        ),
    ] = None,
    objective: ObjectiveOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    pricing: Annotated[
        Pricing | None,
        typer.Option(help="Price workers per VM, by their size (vCPU and GiB), or both side by side."),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="RATES", help="Pricing by size: cpu=$,gib=$ per hour, or a Google Cloud family (e2)."
        ),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(metavar="N", help="Pricing by size: vCPUs of a worker, if unknown.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="GIB[+GIB]",
            help="Pricing by size: memory of a worker, and of each sample, if not measured.",
        ),
    ] = None,
    out: OutOption = None,
    verbose: VerboseOption = False,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Draw predicted times and costs of a job or of past runs."""

    def command() -> int:
        from scavenger_cli.commands import curves as drawing
        from scavenger_cli.commands.pricing import Sizes

        named = CurveFormat.JSON if output is Output.JSON else form
        wanted = drawing.form_of(None if named is None else named.value, out)
        limits = drawing.Limits.of(None if objective is None else objective.value, budget, deadline)
        sizes = Sizes.of(None if pricing is None else pricing.value, rates, cpus, memory, price)
        if why is not None:
            drawing.refuse_drawing_of_why(wanted, sizes)
        if not sources:
            drawing.refuse_limits_of_a_job(limits)
            drawing.refuse_sizes_of_a_job(workers, batch_size)
            if why is not None:
                return drawing.explain(job, why, form=wanted, out=out, store_url=store)
            return drawing.show(job, form=wanted, out=out, store_url=store, sizes=sizes, verbose=verbose)
        from scavenger.control.search.imported import ImportOptions, parse_sizes

        sizes_of = [None if text is None else parse_sizes(text) for text in (workers, batch_size)]
        terms = ImportOptions(price, workload, dataset_size, *sizes_of)
        if why is not None:
            return drawing.explain_imported(sources, terms, limits, why, form=wanted, out=out)
        return drawing.show_imported(
            sources, terms, limits, form=wanted, out=out, sizes=sizes, verbose=verbose
        )

    finish(output, command)


@app.command()
def status(
    job: ListedJobKey = None,
    state: StateOption = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="List only jobs of this name; * stands for any characters."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show the job as it changes, until it has ended.")
    ] = False,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the latest jobs, or one job with its progress and processes."""

    def command() -> int:
        from scavenger_cli.commands.status import Filters, show_status

        filters = Filters(tuple(state or ()), name)
        as_json = output is Output.JSON
        return show_status(job, filters, follow=follow, store_url=store, as_json=as_json)

    finish(output, command)


beginning.register(app)
operating.register(app)
serving.register(app)
clearing.register(app)
clustering.register(app)
imaging.register(app)
costing.register(app)


@app.command()
def doctor(infra: InfraOption = None, store: StoreOption = None, output: OutputOption = Output.TEXT) -> None:
    """Check that this machine has everything a job needs, and with --infra also a cloud."""

    def command() -> int:
        from scavenger_cli.commands.doctor import show

        return show(store_url=store, as_json=output is Output.JSON, infra=infra)

    finish(output, command)


@schema.command("job")
def schema_job(output: OutputOption = Output.JSON) -> None:
    """Print the JSON Schema of the job file."""

    def command() -> int:
        from scavenger.control.job_file.load import job_schema

        console.emit_json(job_schema())
        return 0

    finish(output, command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments, without the program's name; None: those of this process.

    Returns:
        The exit code (see `scavenger.errors`). No exception is raised; SCAVENGER_DEBUG=1 shows tracebacks.
    """
    console.prepare_streams()
    try:
        logs.set_up("scavenger", logs.read_settings(), level="WARNING")
        code = app(args=arguments, prog_name="scavenger", standalone_mode=False)
        console.write(sys.stdout, "")
        return int(code or 0)
    except typer.Abort:
        return Interrupted.exit_code
    except Interrupted as interrupted:
        return interrupted.exit_code
    except ScavengerError as error:
        _show_traceback_if_asked()
        console.error(error)
        return error.exit_code
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "scavenger"
        words = error.format_message().replace("Value error, ", "")  # the validator's, not the user's
        console.error(f"{words} (see `{path} --help`)")
        return USAGE_ERROR
    except Exception as error:  # noqa: BLE001 - the last resort of a program that shows no tracebacks
        _show_traceback_if_asked()
        console.error(f"internal fault, {type(error).__name__}: {error}; {_keep_traceback()}")
        return 1


def _show_traceback_if_asked() -> None:
    if os.environ.get("SCAVENGER_DEBUG", "") not in ("", "0"):
        console.write(sys.stderr, mask(traceback.format_exc()))


def _keep_traceback() -> str:
    """Write the traceback to a file, so that a bug report can quote it; return where it is."""
    import tempfile

    from platformdirs import user_log_path

    text = f"scavenger {__version__}, Python {sys.version}\n{mask(traceback.format_exc())}"
    for folder in (user_log_path("scavenger"), Path(tempfile.gettempdir())):
        try:
            make_private_folder(folder)
            number, name = tempfile.mkstemp(prefix="scavenger-", suffix=".traceback", dir=folder)
            with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
        except OSError:
            continue
        return f"the traceback is in {name}"
    return "set SCAVENGER_DEBUG=1 to see the traceback"


if __name__ == "__main__":
    sys.exit(main())
