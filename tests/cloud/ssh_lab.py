"""Hosts on this machine, each with an SSH server and a folder of its own, which really start processes."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from scavenger.cloud.ssh.host import Host, _kill_all, _processes
from scavenger.cloud.ssh.provider import SshProvider
from scavenger.domain.vm_settings import SshSettings
from scavenger.testing.provider_conformance import Fact

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no OpenSSH client")
_WITHIN_S = 60.0


class _Server(asyncssh.SSHServer):
    def __init__(self, lab: SshLab) -> None:
        self._lab = lab

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        self._lab.faults_fired += self._lab.denies
        return not self._lab.denies and key.public_data == self._lab.key.public_data


class SshLab:
    """A group of hosts; `with` ends all that they run.

    Args:
        folder: For keys, and the hosts' homes.
        hosts: Settings of the hosts, by their names.
        programs: Folder of the programs that the hosts have beside the system's own, see `programs_in`.

    Attributes:
        denies: No host lets anybody in.
        failing, losing: So many of the next questions fail, or are done and not answered.
        faults_fired: How many met a fault.
    """

    def __init__(self, folder: Path, hosts: Mapping[str, Mapping[str, Any]], programs: str = "") -> None:
        self.folder, self.hosts, self._programs = folder, hosts, programs
        self.denies, self.failing, self.losing, self.faults_fired = False, 0, 0, 0
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self._server_key = asyncssh.generate_private_key("ssh-ed25519")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: dict[str, asyncssh.SSHAcceptor] = {}
        self._held: dict[str, int] = {}

    def __enter__(self) -> SshLab:
        self._thread.start()
        for name in self.hosts:
            (self.folder / name).mkdir(parents=True)
            self.start(name, 0)
        self.key.write_private_key(self.folder / "key")
        (self.folder / "key").chmod(0o600)
        public = self._server_key.export_public_key().decode().strip()
        known = "".join(f"[127.0.0.1]:{self.port(name)} {public}\n" for name in self.hosts)
        (self.folder / "known_hosts").write_text(known)
        (self.folder / "ssh_config").write_text(
            f"IdentityFile {self.folder}/key\nIdentitiesOnly yes\nIdentityAgent none\n"
            f"UserKnownHostsFile {self.folder}/known_hosts\nGlobalKnownHostsFile /dev/null\nUser me\n"
        )
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.hosts:
            self.kill(name)
            self.release(name)
            self.stop(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def settings(self) -> SshSettings:
        given = {
            name: {"address": "127.0.0.1", "port": self.port(name), **host}
            for name, host in self.hosts.items()
        }
        return SshSettings.model_validate(
            {"hosts": given, "config": str(self.folder / "ssh_config"), "folder": "~/scavenger"}
        )

    def settings_file(self) -> Path:
        """The settings as a file."""
        path, given = self.folder / "config.toml", self.settings.model_dump(mode="json", exclude_unset=True)
        lines = ["[ssh]", *(f"{key} = {json.dumps(given[key])}" for key in ("config", "folder"))]
        for name, host in given["hosts"].items():
            lines += [f"[ssh.hosts.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in host.items())]
        path.write_text("\n".join(lines) + "\n")
        return path

    def port(self, name: str) -> int:
        return self._servers[name].get_port()

    def start(self, name: str, port: int) -> None:
        """Let a host be reached."""

        async def listen() -> asyncssh.SSHAcceptor:
            return await asyncssh.listen(
                "127.0.0.1",
                port,
                server_factory=lambda: _Server(self),
                server_host_keys=[self._server_key],
                process_factory=lambda process: self._serve(name, process),
                sftp_factory=None,
            )

        self._servers[name] = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(20)

    def stop(self, name: str) -> None:
        """Let a host be reached no more."""
        self._loop.call_soon_threadsafe(self._servers[name].close)

    async def _serve(self, name: str, process: asyncssh.SSHServerProcess[str]) -> None:
        text = await process.stdin.read()
        if self.failing:
            self.failing -= 1
            self.faults_fired += 1
            process.stderr.write("the connection broke\n")
            process.exit(255)
            return
        environment = {
            "HOME": str(self.folder / name),
            "PATH": os.pathsep.join([self._programs or os.path.dirname(sys.executable), os.defpath]),
        }
        there = await asyncio.create_subprocess_shell(
            process.command or "true",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd=self.folder / name,
        )
        out, err = await there.communicate(text.encode())
        if self.losing and ('"ask": "launch"' in text or '"ask": "terminate"' in text):
            self.losing -= 1
            self.faults_fired += 1
            process.exit(255)
            return
        process.stdout.write(out.decode())
        process.stderr.write(err.decode())
        process.exit(there.returncode or 0)

    # ---- what truly is ----------------------------------------------------------------------------------------

    def host(self, name: str) -> Host:
        """The host as the program there sees it."""
        return Host(str(self.folder / name / "scavenger"))

    def vms(self, name: str) -> list[dict[str, Any]]:
        return list(self.host(name).look()["vms"])

    def kill(self, name: str) -> None:
        """End all that a host runs, at once, as a loss of power does.

        A process that is killed holds the lease until it has ended, and one that is just being started is not yet
        known by its environment.
        """
        until = time.monotonic() + _WITHIN_S
        while self._runs(name):
            assert time.monotonic() < until, f"{name} does not end"

    def _runs(self, name: str) -> bool:
        """Kill what there is of a host's VMs; whether there was any."""
        found = self.host(name).look()
        running = [vm for vm in found["vms"] if vm["state"] != "gone"]
        for vm in running:
            with suppress(ProcessLookupError):
                os.kill(vm["keeper"], 9)
        for vm in found["vms"] if found["held"] else running:
            _kill_all(vm["token"])
        return bool(running) or (found["held"] and name not in self._held)

    def hold(self, name: str) -> bool:
        """Have a host as another user of it would; whether it was free."""
        lease = os.open(self.folder / name / "scavenger.lease", os.O_RDONLY | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lease)
            return False
        self._held[name] = lease
        return True

    def release(self, name: str) -> None:
        if name in self._held:
            os.close(self._held.pop(name))

    def left(self) -> list[str]:
        """What there is of VMs that should have ended: processes, leases and folders."""
        found = []
        for name in self.hosts:
            found += [f"{name}: process {pid}" for vm in self.vms(name) for pid in _processes(vm["token"])]
            found += [f"{name}: held"] if self.host(name).look()["held"] else []
            homes = (self.folder / name).glob("scavenger-*")
            found += [str(path) for home in homes for path in (home / "work").glob("*")]
        return found


class SshWorld:
    """See `World`."""

    vm, vm_unknown, instance_unknown = "2cpu-4gib", "64cpu-4gib", "a1.00000000-0000-4000-8000-000000000000"
    user_data = "#!/bin/sh\nwhile :; do sleep 1; done\n"

    def __init__(self, lab: SshLab) -> None:
        self.lab = lab
        self.provider = SshProvider("lab", lab.settings)

    @property
    def faults_fired(self) -> int:
        return self.lab.faults_fired

    def stock_out(self, zone: str, *, on: bool = True) -> None:
        for name, host in self.lab.hosts.items():
            if zone == f"lab-{host['rack']}":
                (self.lab.hold if on else self.lab.release)(name)

    def fail(self, calls: int) -> None:
        self.lab.failing = calls

    def deny(self, *, on: bool = True) -> None:
        self.lab.denies = on

    def lose_answers(self, calls: int) -> None:
        self.lab.losing = calls

    def delete_by_hand(self, instance_id: str) -> None:
        self.lab.kill(instance_id.partition(".")[0])

    def write_console(self, instance_id: str, text: str) -> None:
        name, _, token = instance_id.partition(".")
        with self.lab.host(name)._console(token).open("a") as file:
            file.write(text)

    def add_foreign(self, zone: str) -> str:
        name = next(
            name
            for name, host in self.lab.hosts.items()
            if zone == f"lab-{host['rack']}" and self.lab.hold(name)
        )
        return f"{name}.{self.instance_unknown.partition('.')[2]}"

    def advance(self, seconds: float) -> None:
        """Whatever is ending ends; then all that hosts have written is so much older."""
        until = time.monotonic() + _WITHIN_S
        while any(vm["state"] == "stopping" for name in self.lab.hosts for vm in self.lab.vms(name)):
            assert time.monotonic() < until, "a VM does not end"
            time.sleep(0.02)
        for name in self.lab.hosts:
            host = self.lab.host(name)
            with host._door():
                for vm in host._vms():
                    times = {key: vm[key] and vm[key] - seconds for key in ("launched_at", "ended_at")}
                    host._write({**vm, **times})

    def truth(self) -> tuple[Fact, ...]:
        return tuple(
            Fact(f"{name}.{vm['token']}", vm["token"], vm["owner"], vm["zone"], vm["state"] != "gone")
            for name in self.lab.hosts
            for vm in self.lab.vms(name)
        )


def programs_in(folder: Path, **programs: str) -> str:
    """A folder with this Python as `python3`, and other scripts, by their names with `_` for `-`."""
    folder.mkdir()
    for name, text in {"python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n', **programs}.items():
        path = folder / name.replace("_", "-")
        path.write_text(text)
        path.chmod(0o755)
    return str(folder)


@contextmanager
def lab_of(folder: Path, hosts: Mapping[str, Mapping[str, Any]], programs: str = "") -> Iterator[SshLab]:
    """A group of hosts whose end leaves nothing."""
    with SshLab(folder, hosts, programs) as lab:
        yield lab
    assert lab.left() == []
