"""Questions to hosts over SSH, by OpenSSH's client: with the user's own configuration, keys and known hosts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from scavenger.cloud.ssh.host import MARK
from scavenger.domain.vm_settings import SshHost, SshSettings
from scavenger.errors import CloudUnavailableError, ConfigurationError, CredentialsError, NotSupportedError

CONNECT_S, ANSWER_S = 10, 60.0
_FAILED = 255
"""Exit status of `ssh` itself; any other is that of the command."""
_AT_ONCE = 16
_OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ConnectTimeout": str(CONNECT_S),
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "LogLevel": "ERROR",
}

T = TypeVar("T")


def ask(settings: SshSettings, name: str, what: str, **given: Any) -> dict[str, Any]:
    """Ask a host a question of `scavenger.cloud.ssh.host.Host`.

    Args:
        settings: With the host.
        name: Of the host.
        what: The method.
        given: What it takes. It is sent on the standard input, where nobody on the host can read it.

    Raises:
        CloudUnavailableError: No answer; what was asked for may have been done.
        CredentialsError: The host does not let us in, or is not known.
        ConfigurationError: It has no Python, or a folder that is not this user's.
        NotSupportedError: There is no `ssh` on this machine.
    """
    host = settings.hosts[name]
    question = json.dumps({"ask": what, "folder": settings.folder, "given": given})
    program = f"{_program()}\n\nanswer(json.loads({question!r}))\n"
    try:
        done = subprocess.run(
            _command(settings, name, host), input=program, capture_output=True, text=True, timeout=ANSWER_S
        )
    except FileNotFoundError:
        raise NotSupportedError("there is no ssh on this machine: install OpenSSH's client") from None
    except subprocess.TimeoutExpired:
        raise CloudUnavailableError(f"host {name} does not answer within {ANSWER_S:g} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
        if "error" in found:
            raise ConfigurationError(f"host {name}: {found['error']}")
        return found
    raise _failure(name, host.address or name, done)


def each(names: Iterable[str], question: Callable[[str], T]) -> dict[str, T | CloudUnavailableError]:
    """Ask several hosts at once; of one that does not answer, the error.

    Raises:
        ScavengerError: Any other.
    """

    def one(name: str) -> T | CloudUnavailableError:
        try:
            return question(name)
        except CloudUnavailableError as error:
            return error

    names = list(names)
    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(names)))) as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


@cache
def _program() -> str:
    return resources.files("scavenger.cloud.ssh").joinpath("host.py").read_text("utf-8")


def _command(settings: SshSettings, name: str, host: SshHost) -> list[str]:
    words = ["ssh", "-T", *(f"-o{key}={value}" for key, value in _OPTIONS.items())]
    words += ["-F", settings.config] if settings.config else []
    words += ["-l", host.user] if host.user else []
    words += ["-p", str(host.port)] if host.port else []
    return [*words, "--", host.address or name, "exec", "python3", "-"]


def _failure(
    name: str, address: str, done: subprocess.CompletedProcess[str]
) -> CloudUnavailableError | CredentialsError | ConfigurationError:
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    last = said[-1][:200] if said else f"ssh ended with status {done.returncode}"
    if done.returncode == _FAILED and "Host key verification failed" in done.stderr:
        return CredentialsError(f"the key of host {name} is not known here: run `ssh {address}` once")
    if done.returncode == _FAILED and "Permission denied" in done.stderr:
        return CredentialsError(f"host {name} does not let us in: {last}; is the key in the agent?")
    if done.returncode == 127:
        return ConfigurationError(f"host {name} has no python3: {last}")
    return CloudUnavailableError(f"host {name} does not answer: {last}")
