"""How long a VM takes from its user data to having joined: `python tests/cloud/boot_times.py WHEELS [TIMES]`, as root.

WHEELS is a folder that stands in for the package index, so that no network is part of it:

    scavenger image build && python -m pip download -d WHEELS -c build/constraints.txt "$(echo build/*.whl)[keras]"

Not included is what a VM does before cloud-init runs its user data.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from machines import ROOT, Machines
from test_boot import archive
from test_package_fetch import leader

from scavenger.cloud.boot.boot import boot_script
from scavenger.cloud.boot.package import own_package, own_wheel

WITHIN_S = 300.0
_PACK = """
import sys
from pathlib import Path
from scavenger.cloud.boot.boot import image_script
from scavenger.cloud.boot.package import own_package, own_wheel
folder, wheel = Path(sys.argv[1]), own_wheel()
(folder / wheel.name).write_bytes(wheel.data)
(folder / "constraints.txt").write_text(wheel.constraints)
(folder / "install.sh").write_text(image_script(own_package(["keras"])))
"""


def make_image(folder: Path, *, older: bool) -> Path:
    """What `scavenger image` writes, of this code or of other code with the same requirements."""
    code = ROOT
    if older:
        code = folder / "older"
        shutil.copytree(ROOT / "scavenger", code / "scavenger", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, code)
        with (code / "scavenger" / "errors.py").open("a") as file:
            file.write("# older\n")
    image = folder / "image"
    image.mkdir()
    subprocess.run(
        [sys.executable, "-c", _PACK, str(image)], cwd=code, env={"PYTHONPATH": str(code)}, check=True
    )
    return image


def boot(machines: Machines, name: str, image: Path | None, extras: tuple[str, ...]) -> float:
    """Seconds from the start of the boot script until the leader has heard the agent."""
    before = "" if image is None else f"sh {image}/install.sh\n"
    with (
        tempfile.TemporaryDirectory() as folder,
        leader(Path(folder), own_wheel().data, machines.address) as (server, join),
    ):
        script = boot_script(join, own_package(extras)).removeprefix("#!/bin/sh\n")
        machine = machines.boot(name, archive(f"#!/bin/sh\n{before}date +'begins %s.%N'\n{script}"))
        until = time.monotonic() + WITHIN_S
        while not server.vms()[0].joined:
            if machine.over.is_set() or time.monotonic() > until or "trying again" in machine.console():
                raise SystemExit(f"{name} has not joined: {machine.console()}")
            time.sleep(0.02)
        joined_at = time.time()
        machine.kill()
        machine.over.wait(20.0)
        return joined_at - float(machine.console().split("begins ")[1].split()[0])


def main(wheels: Path, times: int = 3) -> None:
    """See the module."""
    programs = {"/etc/pip.conf": f"[install]\nno-index = true\nfind-links = {wheels.resolve()}\n"}
    with Machines("", programs=programs) as machines, tempfile.TemporaryDirectory() as folder:
        for case, older, extras in (
            ("bare, no Keras", None, ()),
            ("bare", None, ("keras",)),
            ("older", True, ("keras",)),
            ("current", False, ("keras",)),
        ):
            place = Path(folder) / case.replace(", ", "-").replace(" ", "-")
            place.mkdir()
            image = None if older is None else make_image(place, older=older)
            took = [boot(machines, f"{place.name}-{number}", image, extras) for number in range(times)]
            print(f"{case}: {statistics.median(took):.1f} s ({min(took):.1f}-{max(took):.1f})", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
