"""A bare image's own Python and pip install Scavenger as the boot script has them do it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from machines import Machines, needs_machines
from test_boot import archive, join_of
from waiting import eventually

from scavenger.cloud.boot.boot import boot_script
from scavenger.domain.vm import VmPackage

NAME = "scavenger_ml-0.1.0"
NOTHING_FROM_OUTSIDE = "[install]\nno-index = true\n"


def wheel(folder: Path) -> Path:
    """Of a package that has nothing but the agent, which says how it was started."""
    path = folder / f"{NAME}-py3-none-any.whl"
    info = f"{NAME}.dist-info"
    with zipfile.ZipFile(path, "w") as content:
        content.writestr(
            "agent.py", "import sys, time\ndef main():\n print(*sys.argv, flush=True); time.sleep(60)\n"
        )
        content.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: scavenger-ml\nVersion: 0.1.0\n")
        content.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        content.writestr(f"{info}/entry_points.txt", "[console_scripts]\nscavenger-vm = agent:main\n")
        content.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.long
@needs_machines
def test_pip_installs_the_package_and_its_agent_is_started(tmp_path: Path) -> None:
    named = VmPackage(requirement=f"scavenger-ml @ file://{wheel(tmp_path)}")
    script = boot_script(join_of(), named)
    programs = {"/etc/pip.conf": NOTHING_FROM_OUTSIDE, "/usr/local/bin/apt-get": "#!/bin/sh\nexit 1\n"}

    with Machines("", programs=programs) as machines:
        machine = machines.boot("bare", archive(script))
        started = "/opt/scavenger/bin/scavenger-vm /run/scavenger/join.json"
        if not eventually(
            lambda: started in machine.console() or "trying again" in machine.console(), within_s=60.0
        ):
            pytest.fail(machine.console())
        if machine.run("python3", "-c", "import ensurepip").returncode:
            pytest.skip("the Python of this machine makes no environments")

        assert started in machine.console()
        assert machine.run("stat", "-c", "%a", "/opt/scavenger").stdout == "700\n"
