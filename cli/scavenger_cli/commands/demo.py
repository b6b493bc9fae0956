"""`demo`: trains an example of the package, so that everything can be seen at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scavenger.control.job_file.examples import JOB_FILE, Example, copy_example
from scavenger.domain.overrides import Overrides
from scavenger_cli.commands.run import execute
from scavenger_cli.options import (
    Invocation,
    Output,
    OutputOption,
    QuietOption,
    StoreOption,
    VerboseOption,
    YesOption,
)
from scavenger_cli.ui import console


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the example is, or is to be copied to.")
    ] = Path("scavenger-demo"),
    yes: YesOption = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Train a small network on handwritten digits at the best point of its curve; about a minute."""
    if not (folder / JOB_FILE).exists():
        copy_example(Example.DIGITS, folder)
        console.note(f"written: {folder / JOB_FILE} and {folder / 'train.py'}")
    invocation = Invocation(store_url, output.is_json, yes, verbose, quiet)
    return execute(folder / JOB_FILE, Overrides("knee"), invocation, run=True)
