"""A leader's VM that installs Scavenger over a network, and one that cannot or whose leader does not live: it ends."""

from __future__ import annotations

import base64
import re
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path

import msgspec
import pytest
import zmq
from machines import Machine, Machines, needs_machines
from test_boot import archive
from waiting import wait_for

from scavenger.cloud.boot.boot import image_script
from scavenger.cloud.boot.leader import FOLDER, NOT_INSTALLED, leader_set_up_script
from scavenger.cloud.boot.package import own_package, own_wheel
from scavenger.cloud.boot.user_data import LIMIT_TIMER
from scavenger.control.leading.configuration import LeaderConfiguration

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

REQUIRED = Path(zmq.__file__).parents[1]
FETCHED = "platformdirs"
"""What the image lacks, so that it comes from the index."""
PACKAGE = own_package(("server",))


def image_of(folder: Path) -> Path:
    """What a leader requires, but for one distribution."""
    image = folder / "image"
    image.mkdir()
    for entry in REQUIRED.iterdir():
        if not entry.name.startswith(FETCHED) and not entry.name.endswith(".pth"):
            (image / entry.name).symlink_to(entry)
    return image


def python_of(image: Path) -> str:
    """An image's Python, whose new environments see the image."""
    return f"""#!/bin/sh
{sys.executable} "$@" || exit
case "$*" in *'-m venv '*) for place in /opt/scavenger/lib/*/site-packages; do
    rm -r "$place"/setuptools*
    echo {image} > "$place/image.pth"
done ;; esac
"""


def packed(name: str, folder: Path) -> Path:
    """The wheel of what is installed here."""
    installed = distribution(name)
    path = folder / f"{name}-{installed.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in installed.files or ():
            if (
                file.parts[0].startswith(name)
                and file.suffix != ".pyc"
                and file.name not in ("INSTALLER", "REQUESTED")
            ):
                wheel.write(str(file.locate()), str(file))
    return path


@contextmanager
def index(folder: Path, address: str) -> Iterator[tuple[str, list[str]]]:
    """A package index on this machine, and what it was asked for."""
    place = folder / "simple" / FETCHED
    place.mkdir(parents=True)
    name = packed(FETCHED, place).name
    (place / "index.html").write_text(f'<!DOCTYPE html><a href="{name}">{name}</a>')
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer((address, 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://{address}:{server.server_port}/simple", asked
    server.shutdown()
    thread.join()
    server.server_close()


def booted(machines: Machines, life_s: float, index_url: str = "http://127.0.0.1:9/simple") -> Machine:
    """A VM with what the command sends to it, but for the leader's configuration."""
    address = index_url.split("/")[2].split(":")[0]
    machines.programs["/etc/pip.conf"] = (
        f"[global]\nindex-url = {index_url}\ntrusted-host = {address}\nretries = 0\ntimeout = 5\n"
    )
    machine = machines.boot("leader", archive("#!/bin/sh\necho booted\n", life_s=life_s))
    assert wait_for(lambda: "booted" in machine.console())
    wheel = own_wheel()
    files = {
        "set_up.sh": leader_set_up_script(PACKAGE).encode(),
        f"package/{wheel.name}": wheel.data,
        "package/constraints.txt": wheel.constraints.encode(),
        "package/install.sh": image_script(PACKAGE).encode(),
    }
    for name, data in files.items():
        put(machine, name, data)
    return machine


def put(machine: Machine, name: str, data: bytes) -> None:
    path = f"{FOLDER}/{name}"
    for start in range(0, len(data), 60_000):
        text = base64.b64encode(data[start : start + 60_000]).decode()
        made = f"mkdir -p $(dirname {path}) && echo {text} | base64 -d >> {path}"
        assert machine.run("sh", "-c", made).returncode == 0


@needs_machines
def test_a_leader_is_installed_from_an_index_in_the_tested_versions_and_serves(tmp_path: Path) -> None:
    programs = {"/usr/local/bin/python3": python_of(image_of(tmp_path))}
    with Machines("", programs=programs) as machines, index(tmp_path, machines.address) as (url, asked):
        machine = booted(machines, 600.0, url)
        configuration = LeaderConfiguration("scavenger-0123456789ab", 8765, 600.0, {})
        put(machine, "leader.json", msgspec.json.encode(configuration))
        put(machine, "token", b"of-the-command")
        put(machine, "job/job.yaml", b"{}")

        done = machine.run("sh", f"{FOLDER}/set_up.sh", timeout_s=300.0)

        assert done.returncode == 0, done.stderr
        version = distribution(FETCHED).version
        assert f"{FETCHED}=={version}" in own_wheel().constraints
        assert [path for path in asked if path.endswith(".whl")] == [
            f"/simple/{FETCHED}/{FETCHED}-{version}-py3-none-any.whl"
        ]
        serves = f"exec 3<> /dev/tcp/127.0.0.1/{configuration.port}"
        assert wait_for(lambda: machine.run("bash", "-c", serves).returncode == 0)


@needs_machines
def test_a_vm_without_an_index_says_so_and_its_time_limit_goes_on(tmp_path: Path) -> None:
    programs = {
        "/usr/local/bin/python3": python_of(image_of(tmp_path)),
        "/usr/local/bin/sleep": "#!/bin/sh\nexec /usr/bin/sleep 0.1\n",
    }
    with Machines("", programs=programs) as machines:
        machine = booted(machines, 600.0)

        done = machine.run("sh", f"{FOLDER}/set_up.sh", timeout_s=300.0)

        assert done.returncode == NOT_INSTALLED
        assert re.search("ERROR: (Cannot install|No matching distribution)", done.stderr)
        assert len(done.stderr.splitlines()) <= 3
        assert machine.run("systemctl", "is-active", "--quiet", LIMIT_TIMER).returncode == 0
        assert machine.run("test", "-e", "/run/systemd/system/scavenger-leader.service").returncode == 1


@needs_machines
def test_a_vm_whose_leader_never_lives_ends(tmp_path: Path) -> None:
    """Each start fails: the set-up renews the time limit once, and nothing does after that."""
    programs = {
        "/usr/local/bin/scavenger-vm": "#!/bin/sh\nexit 0\n",
        "/usr/local/bin/scavenger-leader": "#!/bin/sh\necho 'no store' >&2\nexit 2\n",
    }
    with Machines("", programs=programs) as machines:
        machine = booted(machines, 8.0)

        assert machine.run("sh", f"{FOLDER}/set_up.sh").returncode == 0

        assert machine.over.wait(60.0)
        assert machine.how == "poweroff"
        assert machine.console().count("no store") >= 2, "it was started again"
