"""A VM fetches its leader's own wheel with its one-time key, installs it and joins."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import zmq
from machines import AGENT, Machines, needs_machines
from test_boot import archive
from waiting import wait_for

from scavenger.cloud.boot.boot import FETCH_PROGRAM, Join, boot_script, image_script
from scavenger.cloud.boot.package import CONSTRAINTS, own_package, own_wheel
from scavenger.domain.vm import VmPackage
from scavenger.train.engines.vm.agent_server import AgentServer

pytestmark = pytest.mark.slow

INTENT = "an-intent"
REQUIRED = Path(zmq.__file__).parents[1]
PYTHON = f"""#!/bin/sh
{sys.executable} "$@" || exit
case "$*" in *'-m venv '*) for place in /opt/scavenger/lib/*/site-packages; do
    rm -r "$place"/setuptools*  # its own is older than the tested version
    echo {REQUIRED} > "$place/image.pth"
done ;; esac
"""
"""An image's Python: what Scavenger requires is there, and Scavenger is not."""
PROGRAMS = {"/usr/local/bin/python3": PYTHON, "/etc/pip.conf": "[install]\nno-index = true\n"}
OUTDATED = "#!/bin/sh\nexit 1\n"


@contextlib.contextmanager
def leader(folder: Path, package: bytes, address: str = "127.0.0.1") -> Iterator[tuple[AgentServer, Join]]:
    """A leader that expects one VM."""
    (folder / "code").mkdir()
    with contextlib.closing(AgentServer(address, folder / "code", package=package)) as server:
        server.start()
        secret = server.expect(INTENT, role="worker", vm="small", threads=1)
        yield server, Join(server.endpoint, server.server_key, INTENT, secret, "aws")


def fetch(
    folder: Path, join: Join, package: VmPackage, *, patience_ms: int = 10_000
) -> subprocess.CompletedProcess[str]:
    """As the boot script does."""
    (folder / "join.json").write_text(json.dumps(asdict(join)))
    program = FETCH_PROGRAM.replace("15000", str(patience_ms))
    return subprocess.run(
        [sys.executable, "-c", program, package.wheel, package.sha256, CONSTRAINTS],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_a_vm_gets_the_wheel_and_the_versions_that_belong_to_it(tmp_path: Path) -> None:
    wheel, package = own_wheel(), own_package()
    with leader(tmp_path, wheel.data) as (server, join):
        done = fetch(tmp_path, join, package)

        assert (done.returncode, done.stderr) == (0, "")
        assert server.alarms() == ()
    assert (tmp_path / wheel.name).read_bytes() == wheel.data
    assert (tmp_path / "constraints.txt").read_text() == wheel.constraints


def test_another_package_than_that_of_the_user_data_is_not_kept(tmp_path: Path) -> None:
    with leader(tmp_path, own_wheel().data[:-1] + b"x") as (_, join):
        done = fetch(tmp_path, join, own_package())

    assert done.returncode == 1
    assert "not the one in the user data" in done.stderr
    assert not (tmp_path / own_wheel().name).exists()


def test_without_a_vms_key_nothing_is_given_and_with_it_not_without_end(tmp_path: Path) -> None:
    package = own_package()
    with leader(tmp_path, own_wheel().data) as (server, join):
        _, stranger = zmq.curve_keypair()
        unknown = fetch(tmp_path, replace(join, secret=stranger.decode()), package, patience_ms=300)
        answers = [fetch(tmp_path, join, package).returncode for _ in range(11)]
        too_often = fetch(tmp_path, join, package)

        assert "cannot fetch the package from tcp://127.0.0.1" in unknown.stderr
        assert answers == [0] * 10 + [1]
        assert "no more of the package" in too_often.stderr
        assert server.vms()[0].joined is False


def joins(machines: Machines, server: AgentServer, script: str, name: str) -> str:
    """Boot a VM and wait until it has joined; returns what it said."""
    machine = machines.boot(name, archive(script))
    ended = ("trying again", "this VM ends")
    wait_for(lambda: server.vms()[0].joined or any(words in machine.console() for words in ended))
    assert server.vms()[0].joined, machine.console()
    return machine.console()


@needs_machines
def test_a_vm_whose_image_has_other_code_installs_its_leaders_and_joins(tmp_path: Path) -> None:
    package = own_package()
    programs = {**PROGRAMS, "/usr/local/bin/scavenger-vm": OUTDATED}
    with (
        Machines("", programs=programs) as machines,
        leader(tmp_path, own_wheel().data, machines.address) as (server, join),
    ):
        said = joins(machines, server, boot_script(join, package), "bare")

        assert f"installing {package.wheel}" in said
        assert server.alarms() == ()


@pytest.mark.long
@needs_machines
def test_a_vm_of_an_image_that_was_made_with_the_leaders_wheel_installs_nothing(tmp_path: Path) -> None:
    wheel, package = own_wheel(), own_package()
    (tmp_path / wheel.name).write_bytes(wheel.data)
    (tmp_path / "constraints.txt").write_text(wheel.constraints)
    (tmp_path / "install.sh").write_text(image_script(package))
    with (
        Machines("", programs=PROGRAMS) as machines,
        leader(tmp_path, b"", machines.address) as (server, join),
    ):
        boots = boot_script(join, package).removeprefix("#!/bin/sh\n")
        said = joins(machines, server, f"#!/bin/sh\nsh {tmp_path}/install.sh\n{boots}", "made")

    assert f"scavenger: installed {package.wheel}" in said
    assert "installing" not in said


@needs_machines
def test_a_vm_of_an_image_that_has_the_leaders_code_installs_nothing(tmp_path: Path) -> None:
    with (
        Machines(AGENT, programs={"/usr/local/bin/python3": OUTDATED}) as machines,
        leader(tmp_path, b"", machines.address) as (server, join),
    ):
        assert "installing" not in joins(machines, server, boot_script(join, own_package()), "ready")
