"""VMs that really boot from their user data: what they run, how long they live, what they are told, what they leave."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from aws_live import LiveAws
from aws_world import VM, Session
from machines import ROOT, Machine, Machines, left, needs_machines, sweep
from made_intents import made_request
from nested import changed
from waiting import eventually, wait_for

from scavenger.cloud.aws.provider import AwsProvider
from scavenger.cloud.base import Provider
from scavenger.cloud.boot.boot import GPU_REQUIREMENT, Join, boot_script
from scavenger.cloud.boot.package import own_package
from scavenger.cloud.boot.user_data import RENEW_COMMAND, user_data
from scavenger.domain.vm import VmPackage, VmRequest, VmSeen
from scavenger.errors import ConfigurationError, GoneError
from scavenger.testing.provider_conformance import OWNER, token_of

pytestmark = pytest.mark.slow

PACKAGE = VmPackage(requirement="scavenger-ml==0.1.0")
SECRET = "4)[:wz/Ch>ls?qn'$(x)`y`@JOIN@&\\Zz#0aB1c2"
HELLO = f"""#!{sys.executable} -IS
import json, os, socket, sys, time
os.set_blocking(0, True)
join = json.load(open(sys.argv[1]))
mode = oct(os.stat(sys.argv[1]).st_mode & 0o777)
host, port = join["endpoint"].removeprefix("tcp://").split(":")
with socket.create_connection((host, int(port))) as leader:
    leader.sendall(json.dumps([join, mode, os.getppid(), sys.argv]).encode())
if os.fork() == 0 and os.setsid() and os.fork() == 0:
    time.sleep(600)
time.sleep(600)
"""


def join_of(endpoint: str = "tcp://10.0.0.1:5", intent: str = "an-intent") -> Join:
    return Join(endpoint, "k" * 40, intent, SECRET, "aws")


def archive(script: str, name: object = 0, **limits: Any) -> str:
    return user_data(changed(request_of("c5.large", "us-east-1a", name), user_data=script, **limits))


def request_of(vm: str, zone: str, name: object = 0) -> VmRequest:
    return made_request(token=token_of(name), owner=OWNER, job_id="job-7", vm=vm, zone=zone)


# The script


def test_vms_with_a_gpus_driver_install_what_the_extra_does() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (extra,) = project["optional-dependencies"]["gpu"]

    assert extra == GPU_REQUIREMENT
    assert f"echo '{GPU_REQUIREMENT}' >> gpus.txt" in boot_script(join_of(), PACKAGE)
    versions = extra.removeprefix("tensorflow[and-cuda]")
    plain = [one.partition(";")[0] for one in project["dependencies"] if one.startswith("tensorflow")]
    assert plain == [f"tensorflow-cpu{versions}", f"tensorflow{versions}"]


def test_a_join_does_not_show_its_secret() -> None:
    assert SECRET not in repr(join_of())


def test_the_script_is_the_same_for_the_same_join() -> None:
    assert boot_script(join_of(), PACKAGE) == boot_script(join_of(), PACKAGE)


@pytest.mark.parametrize(
    "package",
    [
        own_package(["parquet"]),
        PACKAGE,
        VmPackage(requirement="scavenger-ml[gpu] @ https://e.com/x.whl"),
        VmPackage(requirement="it's $(odd) `x`"),
    ],
)
def test_the_script_is_sound_shell_whatever_it_is_given(package: VmPackage) -> None:
    script = boot_script(join_of(), package)

    subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=10)
    assert not re.search(r"@[A-Z]+@", script.replace(SECRET.replace("\\", "\\\\"), ""))


@pytest.mark.parametrize(
    "package",
    ["", " ", "a\nb", "a\r", "x @ https://user:password@e.com/x.whl", "git+https://token@e.com/x.git"],
)
def test_a_package_that_would_not_do_or_tells_a_password_is_refused(package: str) -> None:
    with pytest.raises(ConfigurationError, match="SCAVENGER_PACKAGE") as told:
        boot_script(join_of(), VmPackage(requirement=package))
    assert "token@" not in str(told.value)
    assert "password@" not in str(told.value)


def test_a_package_by_ssh_is_no_secret() -> None:
    named = VmPackage(requirement="git+ssh://git@e.com/x.git")

    assert "git+ssh://git@e.com/x.git" in boot_script(join_of(), named)


def test_the_public_name_is_installed_from_nowhere_but_the_leaders_own_wheel() -> None:
    package = own_package(["parquet"])
    installs = re.findall(r"pip install (.*)", boot_script(join_of(), package))

    assert installs == [
        f"{' '.join(package.tools)} &&",
        f'-c constraints.txt "scavenger-ml[parquet] @ file://$PWD/{package.wheel}" -r gpus.txt && '
        f"/opt/scavenger/bin/scavenger-vm --has {package.sha256} parquet",
    ]


# Machines


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with Machines(HELLO, stop_s=0.5) as machines:
        yield machines
    assert left(machines.mark) == []


def heard(leader: socket.socket) -> list[Any]:
    import json

    leader.settimeout(10)
    while True:
        connection, _ = leader.accept()
        with connection, connection.makefile() as told:
            if text := told.read():  # the boot script only tries whether it can connect
                return list(json.loads(text))


@needs_machines
def test_the_agent_starts_with_what_it_needs_to_join_and_nobody_else_sees_it(machines: Machines) -> None:
    with socket.create_server((machines.address, 0)) as leader:
        join = join_of(f"tcp://{machines.address}:{leader.getsockname()[1]}")
        script = boot_script(join, PACKAGE)
        machine = machines.boot("joins", archive(script))
        told, mode, parent, argv = heard(leader)

    assert Join(**told) == join
    assert (mode, parent) == ("0o600", 1)
    assert SECRET not in str(argv)
    assert SECRET not in machine.console()
    again = machine.run("sh", "-c", script)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    machine.kill()
    assert machine.over.wait(60)


@needs_machines
def test_a_vm_without_its_time_limit_or_without_its_agent_is_no_use_and_ends() -> None:
    with Machines("#!/bin/sh\nexit 3\n", stop_s=3.0) as machines:
        no_limit = machines.boot(
            "endless", archive("#!/bin/sh\nrm -f x\n").replace("systemctl start", "true")
        )
        assert no_limit.up.wait(60)
        told = no_limit.run("sh", "-c", boot_script(join_of(), PACKAGE))
        ended = machines.boot("ended", archive(boot_script(join_of(), PACKAGE)))

        assert "its time limit is not set" in told.stderr
        assert no_limit.over.wait(60)
        assert ended.over.wait(60)
        assert (no_limit.how, ended.how) == ("poweroff", "poweroff")


BROKEN = "#!/bin/sh\necho broken >&2\nexit 1\n"
SECOND = """#!/bin/sh
[ "$2" = venv ] || exit 9  # what else is asked of it does not count
case $1 in */reach.py) exit 1 ;; esac
[ -e /once ] || { touch /once; exit 1; }
mkdir -p /opt/scavenger/bin
printf '#!/bin/sh\\ntrue\\n' > /opt/scavenger/bin/python
printf '#!/bin/sh\\necho installed and started; sleep 60\\n' > /opt/scavenger/bin/scavenger-vm
chmod +x /opt/scavenger/bin/*
"""


@needs_machines
@pytest.mark.parametrize(
    ("python3", "words"), [(BROKEN, "cannot be installed"), (SECOND, "installed and started")]
)
def test_scavenger_is_installed_where_it_is_missing_again_and_again_but_not_for_ever(
    python3: str, words: str
) -> None:
    programs = {
        "/usr/local/bin/python3": python3,
        "/usr/local/bin/apt-get": BROKEN,
        "/usr/local/bin/sleep": "#!/bin/sh\n[ $1 != 60 ] || exec /bin/sleep 60\n",
    }
    with Machines("", programs=programs, stop_s=0.2) as machines:
        machine = machines.boot("bare", archive(boot_script(join_of(), PACKAGE)))

        assert eventually(lambda: words in machine.console(), within_s=60.0), machine.console()
        assert "trying again in 5 s" in machine.console()
        assert machine.over.wait(5 if python3 == BROKEN else 0) is (python3 == BROKEN)


BURN = f"""#!{sys.executable} -IS
import time
until = time.monotonic() + 0.6
while time.monotonic() < until: pass
print("burnt", time.process_time(), flush=True)
time.sleep(60)
"""


@needs_machines
def test_a_vm_gets_its_share_of_the_processors_and_no_more() -> None:
    with Machines(BURN) as machines:
        machine = machines.boot("small", archive(boot_script(join_of(), PACKAGE)), cores=0.2)
        assert wait_for(lambda: "burnt" in machine.console())
        if not [each for each in left(machines.mark) if each.startswith("/sys/fs/cgroup")]:
            pytest.skip("no groups of processes with shares here")

        assert float(machine.console().split("burnt ")[1].split()[0]) < 0.25


@needs_machines
def test_nothing_is_left_of_vms_whose_host_was_killed(tmp_path: Path) -> None:
    host = textwrap.dedent(
        """
        import os, signal, sys, time
        from machines import Machines
        machines = Machines("#!/bin/sh\\nexec sleep 600\\n")
        machine = machines.boot("orphan", sys.argv[1], cores=0.5)
        while "started" not in machine.console(): time.sleep(0.02)
        print(machines.mark, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", host, archive(boot_script(join_of(), PACKAGE))],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    mark = done.stdout.strip()
    assert (done.returncode, mark[:4]) == (-signal.SIGKILL, "scv-"), done.stderr
    assert left(mark)

    sweep()

    assert eventually(lambda: not left(mark), within_s=60.0), left(mark)


# Clouds


class LiveCloud:
    """One of both, with VMs that run."""

    def __init__(self, name: str, server: Any, provider: Provider, vm: str) -> None:
        self.name, self.server, self.provider, self.vm = name, server, provider, vm
        self._count = 0

    def launch(self, script: str, **changes: Any) -> tuple[VmSeen, Machine]:
        self._count += 1
        zone = self.provider.zones(self.vm)[0]
        request = changed(
            request_of(self.vm, zone, f"{self.name}-{self._count}"), user_data=script, **changes
        )
        seen = self.provider.launch(request)
        machine: Machine = self.server.vm(seen.instance_id)
        assert machine.up.wait(60), machine.console()
        return seen, machine

    def look(self, seen: VmSeen) -> VmSeen | None:
        try:
            return self.provider.describe(seen.instance_id, seen.zone)
        except GoneError:
            return None

    def is_gone(self, seen: VmSeen) -> bool:
        now = self.look(seen)
        return now is None or now.state == "gone"


@pytest.fixture(scope="module", params=["aws", "gcp"])
def cloud(request: pytest.FixtureRequest, machines: Machines) -> Iterator[LiveCloud]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        if request.param == "aws":
            server = stack.enter_context(closing(LiveAws(machines)))
            patch.setenv("AWS_ENDPOINT_URL", server.url)
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            yield LiveCloud("aws", server, AwsProvider("us-east-1", Session()), VM)
        else:
            yield gcp(stack, machines)


def gcp(stack: ExitStack, machines: Machines) -> LiveCloud:
    pytest.importorskip("google.cloud.compute_v1")
    pytest.importorskip("googleapiclient")
    from gcp_live import LiveGcp
    from gcp_state import PROJECT, REGION

    from scavenger.cloud.gcp.provider import ENDPOINT_VARIABLE, GcpProvider

    server = stack.enter_context(LiveGcp(machines))
    provider = GcpProvider(
        PROJECT,
        REGION,
        environment={ENDPOINT_VARIABLE: server.endpoint},
        sleep=lambda pause_s: time.sleep(min(pause_s, 0.1)),
    )
    return LiveCloud("gcp", server, provider, "e2-standard-2")


@needs_machines
def test_a_launch_boots_a_vm_that_reaches_its_leader_and_its_end_ends_all(
    cloud: LiveCloud, machines: Machines
) -> None:
    with socket.create_server((machines.address, 0)) as leader:
        join = join_of(f"tcp://{machines.address}:{leader.getsockname()[1]}")
        seen, machine = cloud.launch(boot_script(join, PACKAGE))
        told, *_ = heard(leader)

    assert Join(**told) == join
    now = wait_for(lambda: (now := cloud.look(seen)) and now.state == "running" and now)
    assert now.address == machine.address
    cloud.provider.terminate(seen.instance_id, seen.zone)
    assert machine.over.wait(60)
    assert machine.how == "stopped"
    assert wait_for(lambda: cloud.is_gone(seen))


@needs_machines
def test_a_vm_lives_while_it_is_renewed_and_ends_soon_when_it_is_not(cloud: LiveCloud) -> None:
    seen, machine = cloud.launch("#!/bin/sh\n", life_s=2.0)
    for _ in range(4):
        assert not machine.over.wait(0.6)
        assert machine.run(*RENEW_COMMAND.split()).returncode == 0
    renewed = time.monotonic()

    assert machine.over.wait(60)
    assert 1.8 < time.monotonic() - renewed < 8.0
    assert machine.how == "poweroff"
    now = wait_for(lambda: (now := cloud.look(seen)) and now.state in ("stopping", "gone") and now)
    if cloud.name == "aws":
        assert wait_for(lambda: cloud.is_gone(seen))
        assert now.reason.startswith("Client.InstanceInitiatedShutdown")
    else:  # its disk is there, until it is deleted
        assert (now.state, now.reason) == ("stopping", "TERMINATED")
        assert 4.0 < (now.ended_at - now.launched_at).total_seconds() < 15.0
        cloud.provider.terminate(seen.instance_id, seen.zone)
        assert wait_for(lambda: cloud.is_gone(seen))


@needs_machines
def test_a_vms_last_moment_is_not_renewed(cloud: LiveCloud) -> None:
    began = time.monotonic()
    _, machine = cloud.launch("#!/bin/sh\n", life_s=5.0, run_max_s=1.0)

    while not machine.over.wait(0.3):
        machine.run(*RENEW_COMMAND.split())
    assert 0.8 < time.monotonic() - began < 4.5  # without its last moment it would live for five seconds


WATCH = """
import sys, time
from scavenger.cloud.notices import watch
print("watching", flush=True)
notice = next(watch(sys.argv[1], stopped=lambda: False))
print(notice.kind, time.time(), flush=True)
"""


@needs_machines
def test_a_preempted_vm_hears_of_it_before_it_is_killed(cloud: LiveCloud) -> None:
    seen, machine = cloud.launch(
        f"#!/bin/sh\nexport PYTHONPATH={ROOT}\nexec {sys.executable} -c '{WATCH}' {cloud.name}\n", spot=True
    )
    assert eventually(lambda: "watching" in machine.console(), within_s=60.0), machine.console()
    time.sleep(0.2)  # the first look is over

    announced = time.time()
    cloud.server.interrupt(seen.instance_id, in_s=2.0)

    assert eventually(lambda: "preemption" in machine.console(), within_s=60.0), machine.console()
    heard_at = float(machine.console().split("preemption ")[1].split()[0])
    assert heard_at - announced < 1.5
    assert machine.over.wait(60)
    assert machine.how == "killed"
    assert time.time() - announced >= 1.9
    assert wait_for(lambda: cloud.is_gone(seen))
