"""The script by which a leader's VM lets its command in: cloud-init runs it once, as root, after the first boot.

It starts an SSH server with a host key that the command has made, so that the command knows whom it talks to, and one
key that may log in. Everything else comes over that connection. The image's own SSH server is stopped, since it would
answer at the same port with keys that nobody knows. Nothing here renews the VM's time limit: a VM that its command
never reaches ends itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from scavenger.cloud.boot.boot import proxy_variables
from scavenger.cloud.boot.user_data import LIMIT_TIMER, RENEW_COMMAND
from scavenger.domain import boot
from scavenger.domain.vm import VmPackage
from scavenger.errors import ConfigurationError

FOLDER = "/var/lib/scavenger"
"""What a leader's VM has of its command's: the package, the job's folder, `leader.json`; and the leader's store."""

NOT_INSTALLED = 70
"""Exit status of the set-up if Scavenger cannot be installed; what pip said last is on its standard error."""

_PUBLIC_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]{60,80}( [\x21-\x7e]*)?")
_SECRET_KEY = re.compile(
    r"-----BEGIN OPENSSH PRIVATE KEY-----\n(?:[A-Za-z0-9+/=]{1,80}\n)+-----END OPENSSH PRIVATE KEY-----\n"
)

_SCRIPT = """\
#!/bin/sh
# Lets the command of a job in by SSH, to make this VM its leader; safe to run again.
set -eu
umask 077
end() {
    echo "@MARK@$1; this VM ends" >&2
    systemctl poweroff
    exit 1
}
@DELETION@systemctl is-active --quiet @LIMIT@ || end '@UNLIMITED@'
if systemctl is-active --quiet scavenger-ssh.service; then
    exit 0
fi
echo '@MARK@@BOOTING@'
mkdir -p /run/scavenger /run/sshd
usermod -p '*' root || :  # a locked account could not log in by its key either; this one has no password still
chmod 755 /run/sshd
cd /run/scavenger
cat > host_key <<'END'
@HOSTKEY@END
cat > authorized_keys <<'END'
restrict,port-forwarding,permitopen="127.0.0.1:@PORT@" @PUBLICKEY@
END
cat > sshd_config <<'END'
Port 22
HostKey /run/scavenger/host_key
AuthorizedKeysFile /run/scavenger/authorized_keys
AllowUsers root
PermitRootLogin prohibit-password
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
AllowTcpForwarding local
AllowAgentForwarding no
AllowStreamLocalForwarding no
GatewayPorts no
X11Forwarding no
PermitTunnel no
PrintMotd no
ClientAliveInterval 30
ClientAliveCountMax 4
PidFile none
END
[ -x /usr/sbin/sshd ] || {
    echo '@MARK@@INSTALLING@ openssh-server'
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 update
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends \\
        openssh-server
} || end '@UNINSTALLED@'
for unit in ssh.socket ssh.service sshd.service; do
    systemctl stop "$unit" > /dev/null 2>&1 || :
done
cat > /run/systemd/system/scavenger-ssh.service <<'END'
[Unit]
Description=Scavenger: lets the command of a job in
[Service]
ExecStart=/usr/sbin/sshd -D -e -f /run/scavenger/sshd_config
StandardOutput=journal+console
StandardError=journal+console
END
systemctl daemon-reload
systemctl start --no-block scavenger-ssh.service
echo '@MARK@@STARTED@'
"""

_DELETION = """\
mkdir -p /run/scavenger
cat > /run/scavenger/delete.py <<'END'
import json, sys, urllib.request
def asked(what):
    url = "http://169.254.169.254/computeMetadata/v1/instance/" + what
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    return urllib.request.urlopen(request, timeout=5).read().decode()
token = json.loads(asked("service-accounts/default/token"))["access_token"]
vm = "%s/zones/%s/instances/%s" % (sys.argv[1], asked("zone").rpartition("/")[2], asked("id"))
request = urllib.request.Request(vm, headers={"Authorization": "Bearer " + token}, method="DELETE")
urllib.request.urlopen(request, timeout=20).read()
print("@MARK@this VM is deleted, with its disk")
END
cat > /run/systemd/system/scavenger-delete.service <<'END'
[Unit]
Description=Scavenger: deletes this VM when it powers off, since its disk would be paid for
After=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecStop=/usr/bin/python3 /run/scavenger/delete.py @AT@
Environment=HOME=/root @PROXIES@
StandardOutput=journal+console
StandardError=journal+console
TimeoutStopSec=40
END
systemctl daemon-reload
systemctl start --no-block scavenger-delete.service
"""
# At the end of every VM: by its timers, its leader, or somebody who is logged in. A VM whose account may not delete it
# stays, powered off, until a sweep finds it.


_SET_UP = """\
#!/bin/sh
# Installs Scavenger on a leader's VM unless its image has it, and starts the leader; safe to run again.
set -eu
umask 077
PATH=$PATH:/opt/scavenger/bin
@PROXY@
cd @FOLDER@
if ! { command -v scavenger-leader > /dev/null && scavenger-vm --has @WHAT@; }; then
    echo '@MARK@@INSTALLING@ '@NAME@
    pause_s=5
    until sh package/install.sh > install.log 2>&1; do
        if [ "$pause_s" -gt 40 ]; then
            { grep -a ^ERROR install.log || tail -n 3 install.log; } | tail -n 3 >&2
            exit @FAILED@
        fi
        echo "@MARK@@RETRYING@ $pause_s s"
        sleep "$pause_s"
        pause_s=$((pause_s * 2))
    done
fi
leader=$(command -v scavenger-leader)
cat > run.sh <<END
# the leader's jobs go on while it is away, and the next one takes them over
until $leader @FOLDER@/leader.json; do
    sleep 5
done
END
cat > /run/systemd/system/scavenger-leader.service <<'END'
[Unit]
Description=Scavenger: leads a job
SuccessAction=poweroff
FailureAction=poweroff
[Service]
ExecStart=/bin/sh @FOLDER@/run.sh
Environment=HOME=/root @PROXIES@
StandardOutput=journal+console
StandardError=journal+console
OOMPolicy=continue
TimeoutStopSec=20
END
systemctl daemon-reload
@RENEW@  # once; from now on the leader does, as long as it serves
systemctl start --no-block scavenger-leader.service
"""


@dataclass(frozen=True, slots=True)
class LeaderAccess:
    """Who may log in to a leader's VM, and how it proves which VM it is.

    Attributes:
        public_key: An OpenSSH public key (Ed25519): who may log in, as root.
        host_key: The secret host key in OpenSSH's format. User data can be read by every account that may describe
            the VM; such an account could pretend to be the VM, but not log in.
        port: Of the API on the VM's loopback, the only one that may be forwarded.
        deletes_at: URL below which the VM deletes itself when it powers off; empty where that ends it with its disk.
    """

    public_key: str
    host_key: str = field(repr=False)
    port: int
    deletes_at: str = ""


def leader_boot_script(access: LeaderAccess, *, proxy: str = "") -> str:
    """Create the POSIX shell script for cloud-init; equal values give the identical text.

    Args:
        access: Who may log in.
        proxy: URL of an HTTP proxy through which the VM reaches its cloud; empty for none.

    Raises:
        ConfigurationError: If a key has another form than OpenSSH's.
    """
    if not (_PUBLIC_KEY.fullmatch(access.public_key) and _SECRET_KEY.fullmatch(access.host_key)):
        raise ConfigurationError("the keys of a leader's VM are not Ed25519 keys in OpenSSH's format")
    ending = {
        "@MARK@": boot.MARK,
        "@AT@": shlex.quote(access.deletes_at),
        "@PROXIES@": " ".join(proxy_variables(proxy)),
    }
    values = {
        "@MARK@": boot.MARK,
        "@DELETION@": _filled(_DELETION, ending) if access.deletes_at else "",
        "@BOOTING@": boot.BOOTING,
        "@INSTALLING@": boot.INSTALLING,
        "@UNINSTALLED@": boot.NOT_INSTALLED,
        "@STARTED@": "the command is let in",
        "@UNLIMITED@": boot.NO_TIME_LIMIT,
        "@LIMIT@": LIMIT_TIMER,
        "@HOSTKEY@": access.host_key,
        "@PUBLICKEY@": access.public_key,
        "@PORT@": str(access.port),
    }
    return _filled(_SCRIPT, values)


def leader_set_up_script(package: VmPackage, *, proxy: str = "") -> str:
    """Create the POSIX shell script that is run over the first connection, in `FOLDER`.

    Beside it are `package/`, with the wheel, its `constraints.txt` and `install.sh` (`boot.image_script`), the job's
    folder as `job/`, and `leader.json`.

    Args:
        package: Installed unless the image has exactly this one.
        proxy: URL of an HTTP proxy through which the VM loads packages and data; empty for none.
    """
    variables = proxy_variables(proxy)
    values = {
        "@MARK@": boot.MARK,
        "@INSTALLING@": boot.INSTALLING,
        "@RETRYING@": boot.RETRYING,
        "@FAILED@": str(NOT_INSTALLED),
        "@FOLDER@": FOLDER,
        "@RENEW@": RENEW_COMMAND,
        "@WHAT@": shlex.join([package.sha256, *package.extras]),
        "@NAME@": shlex.quote(package.name),
        "@PROXY@": f"export {' '.join(map(shlex.quote, variables))}" if proxy else "# no proxy",
        "@PROXIES@": " ".join(variables),
    }
    return _filled(_SET_UP, values)


def _filled(script: str, values: Mapping[str, str]) -> str:
    return re.sub(r"@[A-Z]+@", lambda found: values[found[0]], script)
