"""The script that makes a VM join its coordinator: cloud-init runs it once, as root, after the first boot.

The script writes the join file, installs Scavenger if the image lacks it, and starts the agent as a service. Meanwhile
it tries whether the VM reaches its coordinator at all. A VM powers off if one of these fails, if its time limit is not
set, or when its agent has ended. So the service is never restarted: its coordinator replaces a failed agent with a new
VM. What the script does is on the VM's console, in the words of `scavenger.domain.boot`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from scavenger import __version__
from scavenger.cloud.boot.user_data import LIMIT_TIMER
from scavenger.domain import boot
from scavenger.errors import ConfigurationError

__all__ = ["GPU_REQUIREMENT", "PACKAGE_VARIABLE", "Join", "boot_script", "package_of"]

PACKAGE_VARIABLE = "SCAVENGER_PACKAGE"
"""Environment variable with what VMs install instead of this version from PyPI: one pip requirement, such as a URL."""

GPU_REQUIREMENT = "tensorflow[and-cuda]>=2.21,<2.22"
"""What VMs whose image has NVIDIA's driver install besides, as the extra `gpu` does."""

_SECRET_IN_URL = re.compile(r"(?<!ssh)://[^/\s]*@")
_UNIT = "scavenger-vm.service"
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
cat > /run/scavenger/reach.py <<'END'
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
        python3 /run/scavenger/reach.py @HOST@ @PORT@ || status=$?
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
cat > /run/scavenger/join.json <<'END'
@JOIN@
END
cat > /run/scavenger/requirements.txt <<'END'
@PACKAGE@
END
if command -v nvidia-smi > /dev/null; then
    echo '@GPUS@' >> /run/scavenger/requirements.txt
fi
venv() {
    python3 -m venv /opt/scavenger && /opt/scavenger/bin/python -m pip --version
}
apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@"
}
installed() {
    { venv > /dev/null 2>&1 || { apt update && apt install --no-install-recommends python3-venv && venv; }; } &&
        /opt/scavenger/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir \\
            -r /run/scavenger/requirements.txt && [ -x /opt/scavenger/bin/scavenger-vm ]
}
if ! command -v scavenger-vm > /dev/null; then
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
ExecStart=$(command -v scavenger-vm) /run/scavenger/join.json
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


def boot_script(join: Join, package: str, *, proxy: str = "") -> str:
    """Create the POSIX shell script for cloud-init; equal values give the identical text.

    The secret is written to a file that only root can read, and appears in no command line and no log.

    Args:
        join: Written to `/run/scavenger/join.json`, which the agent removes after reading it.
        package: A requirement as pip reads it; see `package_of`.
        proxy: URL of an HTTP proxy through which the VM loads packages and data; empty for none. The metadata service
            is asked directly.

    Raises:
        ConfigurationError: If the package is not a single line, or is a URL with a password: user data stays readable.
    """
    if not package.strip() or package.splitlines() != [package]:
        raise ConfigurationError(f"{PACKAGE_VARIABLE} must be one requirement on one line, not {package!r}")
    if _SECRET_IN_URL.search(package):
        raise ConfigurationError(
            f"{PACKAGE_VARIABLE} holds a password or token, which everything on a VM could read; "
            "use a URL that needs none"
        )
    variables = [f"{name}={proxy}" for name in _PROXY_VARIABLES] if proxy else []
    variables += [f"{name}={_PROXY_NOT_FOR}" for name in _NO_PROXY_VARIABLES] if proxy else []
    host, _, port = join.endpoint.removeprefix("tcp://").rpartition(":")
    values = {
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
        "@PROXY@": f"export {' '.join(map(shlex.quote, variables))}" if proxy else "# no proxy",
        "@PROXIES@": " ".join(variables),
        "@LIMIT@": LIMIT_TIMER,
        "@UNIT@": _UNIT,
        "@JOIN@": json.dumps(asdict(join)),
        "@PACKAGE@": package,
        "@GPUS@": GPU_REQUIREMENT,
        "@NAME@": shlex.quote(package),
    }
    return re.sub(r"@[A-Z]+@", lambda found: values[found[0]], _SCRIPT)


def package_of(environment: Mapping[str, str], extra: str = "") -> str:
    """The requirement that VMs install: `SCAVENGER_PACKAGE`, or else this version of Scavenger.

    Args:
        environment: Environment variables.
        extra: What to install in addition: the cloud, for data and checkpoints in its object store.
    """
    return environment.get(PACKAGE_VARIABLE) or f"scavenger-ml{f'[{extra}]' if extra else ''}=={__version__}"
