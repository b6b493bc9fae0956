"""The script with which a VM comes to work for its leader: cloud-init runs it once, as root, after the first boot.

It writes down how to join, installs Scavenger where the image lacks it, and starts the agent as a service. A VM that
cannot do so, whose time limit is not set, or whose agent has ended, is of no use to anybody: it powers off. So the
service has no restarts either: whatever an agent has lost, its leader replaces with a new VM.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from scavenger import __version__
from scavenger.cloud.boot.user_data import LIMIT_TIMER
from scavenger.errors import ConfigurationError

__all__ = ["PACKAGE_VARIABLE", "Join", "boot_script", "package_of"]

PACKAGE_VARIABLE = "SCAVENGER_PACKAGE"
"""What VMs install in place of this version from PyPI; one requirement as pip reads it, such as a wheel's URL."""

_SECRET_IN_URL = re.compile(r"(?<!ssh)://[^/\s]*@")
_UNIT = "scavenger-vm.service"

_SCRIPT = """\
#!/bin/sh
# Makes this VM a worker or an aggregator of Scavenger; safe to run again.
set -eu
umask 077
PATH=$PATH:/opt/scavenger/bin
end() {
    echo "scavenger: $1; this VM ends" >&2
    systemctl poweroff
    exit 1
}
systemctl is-active --quiet @LIMIT@ || end 'its time limit is not set'
if systemctl is-active --quiet @UNIT@; then
    exit 0
fi
mkdir -p /run/scavenger
cat > /run/scavenger/join.json <<'END'
@JOIN@
END
cat > /run/scavenger/requirements.txt <<'END'
@PACKAGE@
END
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
    echo "scavenger: installing "@NAME@
    pause_s=5
    until installed; do
        [ "$pause_s" -le 80 ] || end 'Scavenger cannot be installed'
        echo "scavenger: trying again in $pause_s s"
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
Environment=HOME=/root
StandardOutput=journal+console
StandardError=journal+console
OOMPolicy=continue
TimeoutStopSec=20
END
systemctl daemon-reload
systemctl start --no-block @UNIT@
echo 'scavenger: the agent was started'
"""
# OOMPolicy: a training process that takes all memory must not take the agent with it, which tells of it.


@dataclass(frozen=True, slots=True)
class Join:
    """How a VM's agent comes to its leader; its fields are those of the agent's join file.

    Attributes:
        endpoint: Of the leader, `tcp://host:port`.
        server_key: The leader's public CURVE key, Z85.
        intent: The id of the VM's intent.
        secret: A CURVE secret key that is good for joining once, Z85.
        provider: Whose notices the agent watches.
    """

    endpoint: str
    server_key: str
    intent: str
    secret: str = field(repr=False)
    provider: str


def boot_script(join: Join, package: str) -> str:
    """A POSIX shell script for cloud-init; the same values give the same text to the byte.

    The secret stands in a file that only root reads, in no command line and no log.

    Args:
        join: Written to `/run/scavenger/join.json`, which the agent removes when it has read it.
        package: A requirement as pip reads it; see `package_of`.

    Raises:
        ConfigurationError: If the package is no single line, or a URL with a password: user data stays readable.
    """
    if not package.strip() or package.splitlines() != [package]:
        raise ConfigurationError(f"{PACKAGE_VARIABLE} must be one requirement on one line, not {package!r}")
    if _SECRET_IN_URL.search(package):
        raise ConfigurationError(
            f"{PACKAGE_VARIABLE} holds a password or token, which everything on a VM could read; "
            "use a URL that is good without"
        )
    values = {
        "@LIMIT@": LIMIT_TIMER,
        "@UNIT@": _UNIT,
        "@JOIN@": json.dumps(asdict(join)),
        "@PACKAGE@": package,
        "@NAME@": shlex.quote(package),
    }
    return re.sub(r"@[A-Z]+@", lambda found: values[found[0]], _SCRIPT)


def package_of(environment: Mapping[str, str]) -> str:
    """What VMs install: what `SCAVENGER_PACKAGE` names, or else this very version."""
    return environment.get(PACKAGE_VARIABLE) or f"scavenger-ml=={__version__}"
