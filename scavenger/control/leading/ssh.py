"""The connection to a leader's VM: commands, files and the forwarded API, by OpenSSH's client.

The host key is known before the first connection, since the command has made it. No configuration of the user's, no
agent and no password is used, so what may be done there follows from this module alone.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from scavenger.errors import TransientError

CONNECT_S = 10
ALIVE_S, ALIVE_TIMES = 15, 4
"""A connection on which nothing is answered for a minute has failed."""
_FAILED = 255
"""Exit status of `ssh` itself; any other is that of the command."""
_TRIES_S = 30.0


class FailedThereError(TransientError):
    """A command has failed on the VM.

    Args:
        message: One line.
        status: Its exit status.
        said: The end of what it said.
    """

    def __init__(self, message: str, status: int, said: str) -> None:
        super().__init__(message)
        self.status, self.said = status, said


@dataclass(frozen=True, slots=True)
class SshTarget:
    """A leader's VM as SSH sees it.

    Attributes:
        address: Where it is reached.
        name: What its host key is filed under; addresses are given to other VMs later.
        key: Path of the secret key that may log in.
        known_hosts: Path of the file with its host key alone.
    """

    address: str
    name: str
    key: Path
    known_hosts: Path


def known_host(name: str, public: str) -> str:
    """The line of a `known_hosts` file."""
    return f"{name} {public}\n"


def ssh_command(target: SshTarget, *arguments: str, forward: tuple[int, int] | None = None) -> list[str]:
    """The command line of the client.

    Args:
        target: Where to.
        arguments: What runs there, words of a shell; empty for nothing.
        forward: A port of this machine's loopback, and the one of the VM's loopback that it leads to.
    """
    options = {
        "BatchMode": "yes",
        "IdentityFile": str(target.key),
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "UserKnownHostsFile": str(target.known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": target.name,
        "HostKeyAlgorithms": "ssh-ed25519",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "PreferredAuthentications": "publickey",
        "ForwardAgent": "no",
        "ConnectTimeout": str(CONNECT_S),
        "ServerAliveInterval": str(ALIVE_S),
        "ServerAliveCountMax": str(ALIVE_TIMES),
        "ExitOnForwardFailure": "yes",
        "LogLevel": "ERROR",
    }
    words = ["ssh", "-F", "none", "-T", *(f"-o{name}={value}" for name, value in options.items())]
    if forward is not None:
        words += ["-N", "-L", f"127.0.0.1:{forward[0]}:127.0.0.1:{forward[1]}"]
    return [*words, "-l", "root", "--", target.address, *arguments]


def run_there(
    target: SshTarget,
    command: str,
    *,
    source: IO[bytes] | None = None,
    sink: IO[bytes] | None = None,
    timeout_s: float = 60.0,
) -> str:
    """Run a command on the VM, by its shell; returns its output.

    Args:
        target: Where to.
        command: For the shell there.
        source: What it reads from.
        sink: What its output is written to, instead of being returned.
        timeout_s: Longest time, seconds.

    Raises:
        FailedThereError: The command fails; the message has the end of what it said.
        TransientError: It cannot be reached, or takes too long.
    """
    try:
        done = subprocess.run(
            ssh_command(target, command),
            stdin=source or subprocess.DEVNULL,
            stdout=sink or subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise TransientError(
            f"{target.address}: {command.split()[0]} took more than {timeout_s:g} s"
        ) from None
    if done.returncode == 0:
        return (done.stdout or b"").decode(errors="replace")
    said = " ".join(done.stderr.decode(errors="replace").split())[-500:]
    if done.returncode == _FAILED:
        raise TransientError(f"{target.address}: cannot be reached by SSH: {said or done.returncode}")
    raise FailedThereError(
        f"{target.address}: {command.split()[0]} failed there: {said or done.returncode}",
        done.returncode,
        said,
    )


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A port that is forwarded.

    Attributes:
        port: The one here, on the loopback.
    """

    port: int
    _target: SshTarget
    _process: subprocess.Popen[bytes]

    def wait(self) -> NoReturn:
        """Wait as long as it is open.

        Raises:
            TransientError: It has ended.
        """
        self._process.wait()
        raise TransientError(f"{self._target.address}: the connection has ended: {_said(self._process)}")


@contextmanager
def forwarded(target: SshTarget, port: int, *, here: int = 0) -> Iterator[Tunnel]:
    """Forward a port of the VM's loopback within the block.

    Args:
        target: Where to.
        port: The one there.
        here: The one here; 0 for any that is free.

    Raises:
        TransientError: It cannot be forwarded now.
    """
    if not here:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            here = int(free.getsockname()[1])
    process = subprocess.Popen(
        ssh_command(target, forward=(here, port)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _await_port(process, here, target)
        yield Tunnel(here, target, process)
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _await_port(process: subprocess.Popen[bytes], port: int, target: SshTarget) -> None:
    until_s = time.monotonic() + _TRIES_S
    while process.poll() is None and time.monotonic() < until_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    said = "no answer" if process.poll() is None else _said(process)
    raise TransientError(f"{target.address}: cannot be reached by SSH: {said}")


def _said(process: subprocess.Popen[bytes]) -> str:
    """The end of what a client that has ended said."""
    assert process.stderr is not None
    return " ".join(process.stderr.read().decode(errors="replace").split())[-500:] or "without a word"
