"""The script that makes a VM join its coordinator: cloud-init runs it once, as root, after the first boot.

The script writes the join file, installs Scavenger unless the image has it, and starts the agent as a service.
Meanwhile it tries whether the VM reaches its coordinator at all. A VM powers off if one of these fails, if its time
limit is not set, or when its agent has ended. So the service is never restarted: its coordinator replaces a failed
agent with a new VM. What the script does is on the VM's console, in the words of `scavenger.domain.boot`.

What is installed is the leader's own wheel. The VM fetches it from the leader with its one-time key, and checks it by
the digest in its user data. Its requirements come from the package index, in the versions that the wheel itself lists.
Nothing is taken from an index under Scavenger's own name, unless the user has named it.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, dataclass, field

from scavenger.cloud.boot.package import CONSTRAINTS, DISTRIBUTION, KERAS
from scavenger.cloud.boot.user_data import LIMIT_TIMER
from scavenger.domain import boot
from scavenger.domain.vm import VmPackage
from scavenger.errors import ConfigurationError

PACKAGE_VARIABLE = "SCAVENGER_PACKAGE"
"""Environment variable with what VMs install instead of the leader's own wheel: one pip requirement, such as a URL."""

GPU_REQUIREMENT = "tensorflow[and-cuda]>=2.21,<2.22"
"""What VMs whose image has NVIDIA's driver install besides, as the extra `gpu` does."""

_SECRET_IN_URL = re.compile(r"(?<!ssh)://[^/\s]*@")
_UNIT = "scavenger-vm.service"
_AGENT = "/opt/scavenger/bin/scavenger-vm"

_FUNCTIONS = """\
venv() {
    python3 -m venv /opt/scavenger && /opt/scavenger/bin/python -m pip --version
}
apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@"
}
pip() {
    /opt/scavenger/bin/python -m pip "$@" --quiet --disable-pip-version-check --no-cache-dir
}
venv_made() {
    [ -x /opt/scavenger/bin/pip ] || venv > /dev/null 2>&1 ||
        { apt update && apt install --no-install-recommends python3-venv && venv; }
}
"""
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_NO_PROXY_VARIABLES = ("no_proxy", "NO_PROXY")
_PROXY_NOT_FOR = "169.254.169.254,metadata.google.internal,localhost,127.0.0.1"

_SCRIPT = """\
#!/bin/sh
# Makes this VM a worker or an aggregator of Scavenger; safe to run again.
set -eu
umask 077
PATH=$PATH:/opt/scavenger/bin
@PROXY@
end() {
    echo "@MARK@$1; this VM ends" >&2
    systemctl poweroff
    exit 1
}
systemctl is-active --quiet @LIMIT@ || end '@UNLIMITED@'
if systemctl is-active --quiet @UNIT@; then
    exit 0
fi
echo '@MARK@@BOOTING@'
mkdir -p /run/scavenger
cd /run/scavenger
cat > reach.py <<'END'
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()
except OSError as error:
    print("@MARK@@UNANSWERED@ at %s:%s: %s" % (sys.argv[1], sys.argv[2], error))
    sys.exit(3)
END
reach() {
    tries=0
    while [ "$tries" -lt 8 ]; do
        status=0
        python3 reach.py @HOST@ @PORT@ || status=$?
        case $status in
            0) echo '@MARK@@REACHED@'; return ;;
            3) ;;
            *) return ;;
        esac
        tries=$((tries + 1))
        sleep 5
    done
    end '@UNANSWERED@ at the last of 8 tries'
}
reach &
cat > join.json <<'END'
@JOIN@
END
cat > @GIVEN@ <<'END'
@CONTENT@
END
: > gpus.txt
if [ -n '@GPUS@' ] && command -v nvidia-smi > /dev/null; then
    echo '@GPUS@' >> gpus.txt
fi
@FUNCTIONS@installed() {
    venv_made && @INSTALL@ && @CHECK@
}
agent=$(command -v scavenger-vm) || agent=
if [ -z "$agent" ]@UNLESS@; then
    agent=@AGENT@
    echo "@MARK@@INSTALLING@ "@NAME@
    pause_s=5
    until installed; do
        [ "$pause_s" -le 80 ] || end '@UNINSTALLED@'
        echo "@MARK@@RETRYING@ $pause_s s"
        sleep "$pause_s"
        pause_s=$((pause_s * 2))
    done
fi
cat > /run/systemd/system/@UNIT@ <<END
[Unit]
Description=Scavenger on this VM
SuccessAction=poweroff
FailureAction=poweroff
[Service]
ExecStart=$agent /run/scavenger/join.json
Environment=HOME=/root @PROXIES@
StandardOutput=journal+console
StandardError=journal+console
OOMPolicy=continue
TimeoutStopSec=20
END
systemctl daemon-reload
systemctl start --no-block @UNIT@
echo '@MARK@@STARTED@'
"""
# reach: in the background, so that it costs no time; a status other than 0 and 3 is that of an image without Python,
# whose agent finds out by itself.
# OOMPolicy: a training process that exhausts the memory must not end the agent, which reports the failure.

FETCH_PROGRAM = """\
import hashlib, io, json, sys, zipfile
import msgspec, zmq
name, sha256, inside = sys.argv[1:]
join = json.load(open("join.json"))
line = zmq.Context().socket(zmq.DEALER)
line.linger, line.rcvtimeo, line.maxmsgsize = 0, 15000, 4 << 20
secret = join["secret"].encode()
line.curve_publickey, line.curve_secretkey = zmq.curve_public(secret), secret
line.curve_serverkey = join["server_key"].encode()
line.connect(join["endpoint"])
data, total = b"", 1
try:
    while len(data) < total:
        line.send(msgspec.msgpack.encode(["Fetch", len(data)]))
        kind, *said = msgspec.msgpack.decode(line.recv())
        if kind != "Chunk" or not said[2]:
            raise ValueError(said[0] if kind == "Refused" else "no data")
        data, total = data + said[2], min(said[1], 64 << 20)
except Exception as error:
    sys.exit(f"scavenger: cannot fetch the package from {join['endpoint']}: {error!r}")
if hashlib.sha256(data).hexdigest() != sha256:
    sys.exit("scavenger: the package from the leader is not the one in the user data")
open(name, "wb").write(data)
open("constraints.txt", "wb").write(zipfile.ZipFile(io.BytesIO(data)).read(inside))
"""

_IMAGE_SCRIPT = """\
#!/bin/sh
# Installs Scavenger in a VM image, so that VMs install nothing when they boot. Run it there as root.
set -eu
umask 077
cd "$(dirname "$0")"
@FUNCTIONS@venv_made
@INSTALL@
@AGENT@ --has @WHAT@
echo 'scavenger: installed '@NAME@
"""


@dataclass(frozen=True, slots=True)
class Join:
    """How a VM's agent joins its coordinator; the fields are those of the agent's join file.

    Attributes:
        endpoint: Address of the coordinator, `tcp://host:port`.
        server_key: The coordinator's public CURVE key, Z85.
        intent: The id of the VM's intent.
        secret: A CURVE secret key that can be used to join once, Z85.
        provider: The cloud whose notices the agent watches.
    """

    endpoint: str
    server_key: str
    intent: str
    secret: str = field(repr=False)
    provider: str


def boot_script(join: Join, package: VmPackage, *, proxy: str = "") -> str:
    """Create the POSIX shell script for cloud-init; equal values give the identical text.

    The secret is written to a file that only root can read, and appears in no command line and no log.

    Args:
        join: Written to `/run/scavenger/join.json`, which the agent removes after reading it.
        package: Installed if the image has no agent, or the agent of another package. An agent of the image is used in
            any case where the user has named a requirement.
        proxy: URL of an HTTP proxy through which the VM loads packages and data; empty for none. The metadata service
            is asked directly.

    Raises:
        ConfigurationError: If the requirement is not a single line, or is a URL with a password, since user data stays
            readable.
    """
    if package.requirement or not package.wheel:
        check_requirement(package.requirement)
        values = {
            "@GIVEN@": "requirements.txt",
            "@CONTENT@": package.requirement,
            "@UNLESS@": "",
            "@INSTALL@": "pip install -r requirements.txt -r gpus.txt",
            "@CHECK@": f"[ -x {_AGENT} ]",
        }
    else:
        fetch = shlex.join(["fetch.py", package.wheel, package.sha256, CONSTRAINTS])
        values = {
            "@GIVEN@": "fetch.py",
            "@CONTENT@": FETCH_PROGRAM.rstrip("\n"),
            "@UNLESS@": f' || ! "$agent" --has {what_of(package)}',
            "@CHECK@": f"{_AGENT} --has {what_of(package)}",
            "@INSTALL@": f"pip install {shlex.join(package.tools)} &&\n"
            f"        /opt/scavenger/bin/python {fetch} &&\n        {install_command(package)} -r gpus.txt",
        }
    variables = proxy_variables(proxy)
    host, _, port = join.endpoint.removeprefix("tcp://").rpartition(":")
    values |= {
        "@MARK@": boot.MARK,
        "@BOOTING@": boot.BOOTING,
        "@REACHED@": boot.REACHED,
        "@UNANSWERED@": boot.NO_ANSWER,
        "@INSTALLING@": boot.INSTALLING,
        "@RETRYING@": boot.RETRYING,
        "@UNINSTALLED@": boot.NOT_INSTALLED,
        "@STARTED@": boot.STARTED,
        "@UNLIMITED@": boot.NO_TIME_LIMIT,
        "@HOST@": shlex.quote(host),
        "@PORT@": shlex.quote(port),
        "@NAME@": shlex.quote(package.name),
        "@AGENT@": _AGENT,
        "@PROXY@": f"export {' '.join(map(shlex.quote, variables))}" if proxy else "# no proxy",
        "@PROXIES@": " ".join(variables),
        "@LIMIT@": LIMIT_TIMER,
        "@UNIT@": _UNIT,
        "@JOIN@": json.dumps(asdict(join)),
        "@FUNCTIONS@": _FUNCTIONS,
        "@GPUS@": gpu_requirement(package),
    }
    return filled(_SCRIPT, values)


def proxy_variables(proxy: str) -> list[str]:
    """Environment variables, as NAME=VALUE, by which programs use a proxy; none without one."""
    if not proxy:
        return []
    variables = [f"{name}={proxy}" for name in _PROXY_VARIABLES]
    return variables + [f"{name}={_PROXY_NOT_FOR}" for name in _NO_PROXY_VARIABLES]


def image_script(package: VmPackage) -> str:
    """Create the script that installs a wheel and its `constraints.txt`, both beside the script, in a VM image.

    VMs that boot from the image and are to have the same package install nothing.
    """
    values = {
        "@INSTALL@": install_command(package),
        "@WHAT@": what_of(package),
        "@NAME@": shlex.quote(package.name),
    }
    return filled(_IMAGE_SCRIPT, {**values, "@AGENT@": _AGENT, "@FUNCTIONS@": _FUNCTIONS})


def install_command(package: VmPackage) -> str:
    """Installs a fetched wheel, by the function `pip` of the script."""
    extras = f"[{','.join(package.extras)}]" if package.extras else ""
    return f'pip install -c constraints.txt "{DISTRIBUTION}{extras} @ file://$PWD/{package.wheel}"'


def gpu_requirement(package: VmPackage) -> str:
    """What is installed besides where there are GPUs; empty for jobs that need no TensorFlow."""
    return GPU_REQUIREMENT if package.requirement or not package.wheel or KERAS in package.extras else ""


def what_of(package: VmPackage) -> str:
    """What `scavenger-vm --has` is asked for."""
    return shlex.join([package.sha256, *package.extras])


def check_requirement(requirement: str) -> None:
    """Check what the user wants to be installed.

    Raises:
        ConfigurationError: If it is not one line, or is a URL with a password.
    """
    if not requirement.strip() or requirement.splitlines() != [requirement]:
        raise ConfigurationError(
            f"{PACKAGE_VARIABLE} must be one requirement on one line, not {requirement!r}"
        )
    if _SECRET_IN_URL.search(requirement):
        raise ConfigurationError(
            f"{PACKAGE_VARIABLE} holds a password or token, which everything on a VM could read; "
            "use a URL that needs none"
        )


def filled(script: str, values: dict[str, str]) -> str:
    """A script with its names in @ replaced."""
    return re.sub(r"@[A-Z]+@", lambda found: values[found[0]], script)
