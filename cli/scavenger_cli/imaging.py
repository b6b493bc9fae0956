"""Arguments and options of `scavenger image`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scavenger_cli.options import Output, OutputOption, finish


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(image)


def image(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; it is made.")],
    extras: Annotated[
        list[str] | None,
        typer.Option(
            "--extra",
            metavar="NAME",
            help="Have this extra in the image, such as parquet. Repeat for several.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write what makes a VM image from which VMs start without installing anything."""

    def command() -> int:
        from scavenger_cli.commands.image import write_image

        return write_image(folder, extras or [], as_json=output is Output.JSON)

    finish(output, command)
