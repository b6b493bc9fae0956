"""`image`: writes what makes a VM image from which VMs start without installing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from scavenger.cloud.boot.boot import image_script
from scavenger.cloud.boot.package import KERAS, own_package, own_wheel
from scavenger.errors import ConfigurationError
from scavenger_cli.options import Output, OutputOption
from scavenger_cli.ui import console

SCRIPT = "install.sh"


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
) -> int:
    """Write what makes a VM image from which VMs start without installing anything."""
    package, wheel = own_package({KERAS, *(extras or [])}), own_wheel()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.glob("scavenger_ml-*.whl"):
            earlier.unlink()
        (folder / wheel.name).write_bytes(wheel.data)
        (folder / "constraints.txt").write_text(wheel.constraints)
        (folder / SCRIPT).write_text(image_script(package))
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder}: {error.strerror}") from None
    if output.is_json:
        console.emit_json(
            {
                "schema_version": console.SCHEMA_VERSION,
                "folder": str(folder),
                "script": SCRIPT,
                "wheel": wheel.name,
                "sha256": wheel.sha256,
                "extras": list(package.extras),
            }
        )
    else:
        console.emit(
            Text(f"copy {folder} to a VM and run {SCRIPT} there as root; then make an image of its disk")
        )
    return 0
