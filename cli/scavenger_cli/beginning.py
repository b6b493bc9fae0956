"""Arguments and options of `scavenger init`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from scavenger_cli.options import Output, OutputOption, finish


class Example(StrEnum):
    """The folder of an example."""

    STARTER = "starter"
    DIGITS = "digits"
    CHARLM = "charlm"
    OWN_LOOP = "own_loop"
    TORCH_DIGITS = "torch_digits"
    COMMAND_TORCH = "command_torch"


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(init)


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to write. Default: this folder.")
    ] = Path(),
    example: Annotated[
        Example | None, typer.Option(help="Copy this example. Default: starter, a small one to change.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The job's name.")] = None,
    train: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="The training code; a module that exists is kept."),
    ] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="The metric to reach.")] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="The metric's value at which training is done.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="SIZES", help="Numbers of workers to consider, such as 1..4.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="$", help="Highest cost in US dollars, such as 20 or $0.50.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write a job file and a training module to start from."""

    def command() -> int:
        from scavenger_cli.commands.init import Settings, begin

        settings = Settings(name, train, metric, target, workers, budget)
        chosen = None if example is None else example.value
        return begin(folder, chosen, settings, ask=not yes, as_json=output is Output.JSON)

    finish(output, command)
