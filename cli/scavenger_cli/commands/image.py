"""`image`: writes what makes a VM image from which VMs start without installing anything."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from scavenger.cloud.boot.boot import image_script
from scavenger.cloud.boot.package import own_package, own_wheel
from scavenger.errors import ConfigurationError
from scavenger_cli.ui import console

SCRIPT = "install.sh"


def write_image(folder: Path, extras: list[str], *, as_json: bool) -> int:
    """Write this installation's own wheel, the versions of what it requires, and the script that installs both.

    Args:
        folder: Where to write; files of an earlier call are replaced.
        extras: Extras that the image has; VMs of jobs that need others install these when they boot.

    Returns:
        0.

    Raises:
        ConfigurationError: There is no such extra, or the folder cannot be written.
    """
    package, wheel = own_package(extras), own_wheel()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.glob("scavenger_ml-*.whl"):
            earlier.unlink()
        (folder / wheel.name).write_bytes(wheel.data)
        (folder / "constraints.txt").write_text(wheel.constraints)
        (folder / SCRIPT).write_text(image_script(package))
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder}: {error.strerror}") from None
    if as_json:
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
