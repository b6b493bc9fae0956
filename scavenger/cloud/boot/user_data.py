"""User data that makes a VM end itself, even if the service that started it has failed.

Two systemd timers in the VM end it: one `life_s` after the boot or its last renewal, the other `run_max_s` after the
boot in any case. They are set by a cloud-init boothook: the earliest that cloud-init runs, before anything of the
user's, and at each boot. EC2 knows no time limit at all; Compute Engine's (`maxRunDuration`) cannot be renewed.
`shutdown +N` would work once the system is up, but needs logind, which is not yet running at that point of the boot.

On EC2 a VM launched with `InstanceInitiatedShutdownBehavior=terminate` that powers off is gone, with its disk. On
Compute Engine its disk is paid for until the VM is deleted, which the reconciler does in its next iteration, or the
next command if no process runs the job any more.
"""

from __future__ import annotations

import math
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

from scavenger.domain.vm import VmRequest
from scavenger.errors import ConfigurationError

LIMIT_TIMER = "scavenger-limit.timer"
RENEW_COMMAND = f"systemctl restart {LIMIT_TIMER}"
"""Command that restarts a VM's time limit when run as root on the VM: this renews its lease."""

_BYTES_MAX = 16_384
"""Size limit of EC2 before base64; Compute Engine accepts sixteen times that."""

_LIMITS = f"""\
#!/bin/sh
set -e
cd /run/systemd/system
cat > scavenger-limit.service <<'END'
[Unit]
Description=End this VM: nobody has renewed its lease, or its time is over
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/usr/bin/systemctl poweroff
END
timer() {{
    cat > "$1" <<END
[Unit]
Description=$2
DefaultDependencies=no
[Timer]
OnActiveSec=$3
AccuracySec=1s
Unit=scavenger-limit.service
END
}}
timer {LIMIT_TIMER} 'Lease of this VM' {{life_s}}
timer scavenger-end.timer 'Last moment of this VM' {{run_max_s}}
systemctl daemon-reload
systemctl start --no-block {LIMIT_TIMER} scavenger-end.timer
"""

_TYPES = (
    ("#!", "x-shellscript"),
    ("#cloud-config", "cloud-config"),
    ("#include", "x-include-url"),
    ("#cloud-boothook", "cloud-boothook"),
)


def user_data(request: VmRequest) -> str:
    """Create the cloud-init archive: the time limits, then the request's own user data.

    Equal requests give the identical text, since EC2 recognizes a repeated launch only if it is identical.

    Raises:
        ConfigurationError: If a limit is not a positive number of seconds, or the user data is too long or of a
            kind that its first line does not identify.
    """
    limits = _LIMITS.replace("{life_s}", str(_seconds(request.life_s)))
    limits = limits.replace("{run_max_s}", str(_seconds(request.template.run_max_s)))
    archive = MIMEMultipart(boundary=f"scavenger-{request.tags.token}")
    archive.attach(_part(limits, "cloud-boothook"))
    if request.template.user_data:
        kind = next((kind for start, kind in _TYPES if request.template.user_data.startswith(start)), None)
        if kind is None:
            raise ConfigurationError(
                "user data must start with '#!' (a script), '#cloud-config' or '#include', "
                f"not with {request.template.user_data[:20]!r}"
            )
        archive.attach(_part(request.template.user_data, kind))
    text = archive.as_string()
    if len(text.encode()) > _BYTES_MAX:
        raise ConfigurationError(
            f"user data of {len(text.encode())} bytes with the time limits; {_BYTES_MAX} are allowed: fetch the rest "
            "from the VM"
        )
    return text


def _seconds(limit_s: float) -> int:
    if not (math.isfinite(limit_s) and limit_s > 0):
        raise ConfigurationError(f"a VM's time limit must be a positive number of seconds, not {limit_s}")
    return math.ceil(limit_s)


def _part(text: str, kind: str) -> MIMEText:
    charset = "us-ascii" if text.isascii() else "utf-8"
    return MIMEText(text, kind, charset)
