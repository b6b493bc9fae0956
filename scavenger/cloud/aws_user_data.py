"""User data with which a VM ends itself, whatever becomes of the service that started it.

EC2 has no time limit for VMs, so the limit is a systemd timer in the VM, written by a cloud-init boothook: the earliest
that cloud-init runs, before anything of the user's. It powers off, and a VM launched with
`InstanceInitiatedShutdownBehavior=terminate` is gone then, with its disk. `shutdown +N` would serve once the system is
up, but needs logind, which is not yet there at that point of the boot.
"""

from __future__ import annotations

import math
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

from scavenger.domain.vm import VmRequest
from scavenger.errors import ConfigurationError

__all__ = ["RENEW_COMMAND", "user_data"]

RENEW_COMMAND = "systemctl restart scavenger-limit.timer"
"""Run as root on the VM, starts its time limit anew: how a lease is renewed."""

_BYTES_MAX = 16_384
"""What EC2 takes, before base64."""

_LIMIT = """\
#!/bin/sh
set -e
cat > /run/systemd/system/scavenger-limit.service <<'END'
[Unit]
Description=End this VM: nobody has renewed its lease
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/usr/bin/systemctl poweroff
END
cat > /run/systemd/system/scavenger-limit.timer <<'END'
[Unit]
Description=Time limit of this VM
DefaultDependencies=no
[Timer]
OnActiveSec={seconds}
AccuracySec=1s
END
systemctl daemon-reload
systemctl start --no-block scavenger-limit.timer
"""

_TYPES = (
    ("#!", "x-shellscript"),
    ("#cloud-config", "cloud-config"),
    ("#include", "x-include-url"),
    ("#cloud-boothook", "cloud-boothook"),
)


def user_data(request: VmRequest) -> str:
    """A cloud-init archive: the time limit, then the request's own user data.

    The same request gives the same text to the byte, as the launch is only then the same to AWS.

    Raises:
        ConfigurationError: If the limit is no positive number of seconds, or the user data is too long, or of no kind
            that its first line tells.
    """
    if not (math.isfinite(request.run_max_s) and request.run_max_s > 0):
        raise ConfigurationError(
            f"a VM's time limit must be a positive number of seconds, not {request.run_max_s}"
        )
    archive = MIMEMultipart(boundary=f"scavenger-{request.token}")
    archive.attach(_part(_LIMIT.format(seconds=math.ceil(request.run_max_s)), "cloud-boothook"))
    if request.user_data:
        kind = next((kind for start, kind in _TYPES if request.user_data.startswith(start)), None)
        if kind is None:
            raise ConfigurationError(
                "user data must start with '#!' (a script), '#cloud-config' or '#include', "
                f"not with {request.user_data[:20]!r}"
            )
        archive.attach(_part(request.user_data, kind))
    text = archive.as_string()
    if len(text.encode()) > _BYTES_MAX:
        raise ConfigurationError(
            f"user data of {len(text.encode())} bytes with the time limit; AWS takes {_BYTES_MAX}: fetch the rest "
            "from the VM"
        )
    return text


def _part(text: str, kind: str) -> MIMEText:
    charset = "us-ascii" if text.isascii() else "utf-8"
    return MIMEText(text, kind, charset)
