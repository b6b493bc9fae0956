"""`api systemd`: a unit with which systemd runs the server."""

from __future__ import annotations

import os
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from scavenger.control.settings import SETTINGS_VARIABLE, settings_path
from scavenger.errors import ConfigurationError
from scavenger.store.owner import this_process
from scavenger_cli.options import StoreOption
from scavenger_cli.ui import console


class LogFormat(StrEnum):
    """Form of log records."""

    TEXT = "text"
    JSON = "json"


_UNIT = """\
# Written by `scavenger api systemd`. As root:
#   scavenger api systemd --account {account} > /etc/systemd/system/scavenger.service
#   systemctl daemon-reload && systemctl enable --now scavenger
#   journalctl -u scavenger        # its first start prints the link of the first token
[Unit]
Description=Scavenger: runs submitted training jobs and serves their REST API and dashboard
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User={account}
ExecStart={command} serve
{environment}
# secrets by name, as variables: of webhooks, clouds, and SCAVENGER_STORE of a PostgreSQL server
EnvironmentFile=-{secrets}
Restart=on-failure
RestartSec=5
# jobs go on when the server stops or is restarted, and the next one adopts them; `scavenger stop` ends a job
KillMode=process
TimeoutStopSec=30
# of connections and of jobs; the server keeps some for its runners
LimitNOFILE=65536
OOMPolicy=continue
UMask=0077

# Jobs run the training code of users with these rights, too. Their folders, GPUs and compilers at run time are needed,
# so ProtectHome, PrivateDevices and MemoryDenyWriteExecute are not set; nor is PrivateTmp, as jobs outlive a restart.
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=full
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""


def unit(
    account: str, command: Path, settings: Path, *, store: str | None = None, json_log: bool = True
) -> str:
    """The text of the unit.

    Args:
        account: Name of the account that it runs under; its jobs run under it, too.
        command: The program `scavenger`.
        settings: The settings file; variables with secrets are read from `environment` beside it.
        store: URL of the store; None for the account's own.
        json_log: Whether records are objects in JSON.

    Raises:
        ConfigurationError: The URL has a password, which units show to everybody; or a value has a line break.
    """
    if store is not None and "@" in store:
        raise ConfigurationError(
            "units can be read by everybody: instead of --store, set SCAVENGER_STORE in the file "
            f"{settings.parent / 'environment'}"
        )
    variables = {SETTINGS_VARIABLE: str(settings), "SCAVENGER_LOG_FORMAT": "json" if json_log else "text"}
    if store is not None:
        variables["SCAVENGER_STORE"] = store
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items()]
    return _UNIT.format(
        account=_plain(account),
        command=_quoted(str(command)),
        environment="\n".join(lines),
        secrets=_plain(str(settings.parent / "environment")).replace("%", "%%"),
    )


def _quoted(text: str) -> str:
    """A word as units write it: `%` begins a specifier, and blanks need quotes."""
    escaped = _plain(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped.split() != [escaped] or '"' in escaped else escaped


def _plain(text: str) -> str:
    if "\n" in text or "\r" in text:
        raise ConfigurationError("a name with a line break cannot be written into a unit")
    return text


def systemd(
    account: Annotated[
        str | None, typer.Option(metavar="NAME", help="Account that it runs under. Default: this one.")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Form of its log records.")] = LogFormat.JSON,
    store_url: StoreOption = None,
) -> int:
    """Print a unit with which systemd runs `scavenger serve`, with few rights; it writes nothing."""
    beside = Path(sys.executable).with_name("scavenger")
    found = beside if os.access(beside, os.X_OK) else Path(shutil.which("scavenger") or beside)
    user, json_log = account or this_process().user, log_format is LogFormat.JSON
    text = unit(user, found, settings_path().absolute(), store=store_url, json_log=json_log)
    console.write(sys.stdout, text)
    return 0
