"""Arguments and options of `scavenger models ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger_cli.options import (
    ConvergenceOption,
    CurvesOption,
    DatasetSizeOption,
    DryRunOption,
    ModelKey,
    OutOption,
    Output,
    OutputOption,
    PriceOption,
    StepTimesOption,
    StoreOption,
    WorkloadOption,
    YesOption,
    finish,
)

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Manage the fitted models, which later jobs reuse.",
)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("fit")
def models_fit(
    step_times: StepTimesOption = None,
    convergence: ConvergenceOption = None,
    workload: WorkloadOption = None,
    price: PriceOption = None,
    dataset_size: DatasetSizeOption = None,
    job: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="JOB",
            help="Store the models for jobs like this one; `plan` must have run for it.",
        ),
    ] = None,
    out: OutOption = None,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Fit models to past measurements, for `curves --from`."""

    def command() -> int:
        from scavenger.control.search.imported import ImportOptions
        from scavenger_cli.commands.fit import fit

        terms = ImportOptions(price, workload, dataset_size)
        as_json = output is Output.JSON
        return fit(step_times, convergence, terms, job=job, out=out, store_url=store, as_json=as_json)

    finish(output, command)


@app.command("list")
def models_list(store: StoreOption = None, output: OutputOption = Output.TEXT) -> None:
    """List the fitted models."""

    def command() -> int:
        from scavenger_cli.commands.stored import list_models

        return list_models(store_url=store, as_json=output is Output.JSON)

    finish(output, command)


@app.command("show")
def models_show(model: ModelKey, store: StoreOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show what a model was fitted for."""

    def command() -> int:
        from scavenger_cli.commands.stored import show_model

        return show_model(model, store_url=store, as_json=output is Output.JSON)

    finish(output, command)


@app.command("rm")
def models_rm(
    model: ModelKey,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete a model."""

    def command() -> int:
        from scavenger_cli.commands.stored import remove_model

        as_json = output is Output.JSON
        return remove_model(model, yes=yes, dry_run=dry_run, store_url=store, as_json=as_json)

    finish(output, command)


@app.command("export")
def models_export(
    model: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Ids of models. Default: all models.")
    ] = None,
    out: OutOption = None,
    store: StoreOption = None,
    output: OutputOption = Output.JSON,
) -> None:
    """Write models as one JSON document, to be imported elsewhere."""

    def command() -> int:
        from scavenger_cli.commands.stored import export_models

        return export_models(model or [], out=out, store_url=store)

    finish(output, command)


@app.command("import")
def models_import(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The exported document; - reads standard input.")
    ],
    store: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Import exported models; a document that was changed is refused."""

    def command() -> int:
        from scavenger_cli.commands.stored import import_models

        return import_models(file, store_url=store, as_json=output is Output.JSON)

    finish(output, command)


@app.command("backtest")
def models_backtest(
    step_times: StepTimesOption = None,
    convergence: ConvergenceOption = None,
    curves: CurvesOption = None,
    seen: Annotated[
        str | None,
        typer.Option(
            metavar="SHARES",
            help="With --curves: shares of the way to the target that are shown. Default: 0.25,0.5,0.75.",
        ),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(
            metavar="POINTS",
            help="Rows to fit: search (as a search takes them, with its costs), extremes, marked (column `profiled`), "
            "or a number. Default: marked, else extremes or 6; and search.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Fit some measurements of a file and compare predictions of the rest."""

    def command() -> int:
        if curves is not None or seen is not None:
            from scavenger_cli.commands.backtest_curves import backtest_of_curves

            others = [step_times, convergence, points]
            return backtest_of_curves(
                curves, seen, alone=all(one is None for one in others), as_json=output is Output.JSON
            )
        from scavenger_cli.commands.backtest import backtest

        return backtest(step_times, convergence, points=points, as_json=output is Output.JSON)

    finish(output, command)
