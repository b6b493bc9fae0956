"""VMs as processes of this machine: each boots from its user data in namespaces of its own, and ends for good.

A VM has its own process numbers, root (what is written goes to memory), network interface on a private net with this
machine, metadata service at 169.254.169.254, and a share of the processors by cgroup. See `machine_init.py` for what
runs in it. Needs root, and a kernel that allows all that; `unavailable` says why where it does not. Everything made is
named `scv*` and marked with the process that made it; what a dead process has left is removed by the next one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

Ended = Literal["poweroff", "stopped", "killed"]
"""It powered off by itself; was asked to end; was ended."""

ROOT = Path(__file__).parents[2]
AGENT = f"""#!/bin/sh
export PYTHONPATH={ROOT}:{ROOT}/cli OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=2
exec {sys.executable} -m scavenger.control.provisioning.on_vm "$@"
"""
_PREFIX = "scv"
_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 20_000
"""Of a processor's share: short, so that a VM is slow all the time and not stopped at times."""
_UNSHARE = ("unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--propagation", "private", "--fork")
_MADE_MAX_S = 20.0


@functools.cache
def unavailable() -> str:
    """Why there can be no VMs on this machine; empty where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "VMs of the tests need root on Linux"
    for tool in ("unshare", "nsenter", "ip", "mount"):
        if shutil.which(tool) is None:
            return f"VMs of the tests need the command {tool}"
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        trial = (
            f"mount -t tmpfs x {folder} && mkdir {folder}/u {folder}/w {folder}/r && "
            f"mount -t overlay -o lowerdir=/,upperdir={folder}/u,workdir={folder}/w x {folder}/r && "
            f"mount -t proc x {folder}/r/proc && ip link add scvtest type veth && ip link add scvbr type bridge"
        )
        done = subprocess.run([*_UNSHARE, "sh", "-c", trial], capture_output=True, text=True, timeout=30)
    return "" if done.returncode == 0 else f"VMs of the tests are not allowed here: {done.stderr.strip()}"


def needs_machines(test: Any) -> Any:
    """Mark a test that boots VMs, and skip it where there can be none."""
    reason = unavailable()
    return pytest.mark.root(pytest.mark.skipif(bool(reason), reason=reason or "VMs can be had")(test))


class Machine:
    """One VM; made by `Machines.boot`.

    Attributes:
        name, address: Of the VM.
        up: Set when its system is up, before its user data runs.
        over: Set when every process of it has ended and nothing is left of it.
        how: How it ended; None before.
    """

    def __init__(self, name: str, address: str, folder: Path, on_end: Callable[[Machine], None]) -> None:
        self.name, self.address = name, address
        self.how: Ended | None = None
        self.up, self.over = threading.Event(), threading.Event()
        self._folder, self._on_end = folder, on_end
        self._process: subprocess.Popen[str] | None = None
        self._init = 0
        self._handle: int | None = None  # of the init, whose number may be another's once it has ended
        self._lock = threading.Lock()
        self._asked: Ended | None = None
        self._said, self._interface = "", ""

    def console(self) -> str:
        """All that was said on it until now."""
        with contextlib.suppress(OSError):
            self._said = (self._folder / "console").read_text(errors="replace")
        return self._said

    def stop(self) -> None:
        """Ask it to end; its processes are told first."""
        with self._lock:
            self._asked = self._asked or "stopped"
            if self._process and self._process.stdin:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()

    def kill(self) -> None:
        """End all its processes at once."""
        with self._lock:
            self._asked = "killed"
            if self._handle is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def cut(self) -> None:
        """Take it off the net, so that nobody hears of what becomes of it: not even that its connections end."""
        if self._interface:
            subprocess.run(["ip", "link", "set", self._interface, "down"], capture_output=True)

    def run(
        self, *argv: str, timeout_s: float = 30.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A command on it, as root."""
        inside = ["nsenter", "--target", str(self._init), "--all", "--root", "--wdns=/", *argv]
        clean = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **environment}
        return subprocess.run(inside, capture_output=True, text=True, timeout=timeout_s, env=clean)

    def live(self, net: _Net, told: Mapping[str, object], cores: float | None) -> None:
        """From boot to end, on a thread of its own."""
        self._folder.mkdir()
        root = self._folder / "disk"
        root.mkdir()
        with (self._folder / "console").open("w") as console:
            argv = [
                *_UNSHARE,
                "--kill-child",
                sys.executable,
                "-IS",
                str(Path(__file__).parent / "machine_init.py"),
            ]
            process = subprocess.Popen(
                [*argv, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=console, text=True
            )
        interface, groups = "", []
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline():
                with self._lock:
                    self._process = process
                    self._init = psutil.Process(process.pid).children()[0].pid
                    self._handle = os.pidfd_open(self._init)
                groups = limit(f"{net.mark}-{self.name}", self._init, cores)
                interface = self._interface = net.connect(self._init)
                with contextlib.suppress(OSError, ValueError):
                    process.stdin.write(json.dumps({**told, "address": self.address}) + "\n")
                    process.stdin.flush()
                if self._asked == "killed":
                    self.kill()
                elif self._asked == "stopped":
                    self.stop()
            for line in process.stdout:
                event = json.loads(line)["event"]
                if event == "up":
                    self.up.set()
                else:
                    self._asked = self._asked or event
        finally:
            if not self._init:  # what has never begun cannot end
                process.kill()
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.wait()
            process.stdout.close()
            with self._lock:
                if self._handle is not None:
                    os.close(self._handle)
                    self._handle = None
            if interface:
                subprocess.run(["ip", "link", "delete", interface], capture_output=True)
            remove(groups)
            self.console()
            shutil.rmtree(self._folder, ignore_errors=True)
            self.how = self._asked or "killed"
            self.over.set()
            self._on_end(self)


class _Net:
    """A bridge with this machine at one end, which can be cut off, and VMs at the others."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._tag = secrets.token_hex(3)
        self.bridge = f"{_PREFIX}{self._tag}"
        self._count = 0
        self._lock = threading.Lock()
        _ip("link", "add", self.bridge, "type", "bridge")
        # The bridge itself is an interface of this machine, and would answer for its address, with a hardware address
        # that changes whenever the VM goes that has the lowest: VMs that had learnt it would then reach nobody.
        _ip("link", "set", self.bridge, "alias", mark, "arp", "off", "up")
        taken = subprocess.run(["ip", "-4", "address"], capture_output=True, text=True, check=True).stdout
        start = os.getpid() % 254
        self._net = next(
            f"10.231.{(start + n) % 254}" for n in range(254) if f" 10.231.{(start + n) % 254}." not in taken
        )
        self.address = f"{self._net}.1"
        self._here, self._port = f"{self.bridge}h", f"{self.bridge}p"
        _ip("link", "add", self._here, "type", "veth", "peer", "name", self._port)
        for end in (self._here, self._port):
            _ip("link", "set", end, "alias", mark, "up")
        self.mend()
        _ip("address", "add", f"{self.address}/24", "dev", self._here)

    def next(self) -> str:
        """An address that no VM of this net had before."""
        with self._lock:
            self._count += 1
            assert self._count < 253, "a net of the tests has 252 VMs"
            return f"{self._net}.{self._count + 1}"

    def connect(self, init: int) -> str:
        """Give a VM its interface; returns the name of its other end."""
        name = f"{self.bridge}{secrets.token_hex(2)}"
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(init))
        _ip("link", "set", name, "alias", self.mark, "master", self.bridge, "up")
        return name

    def cut(self) -> None:
        """From now on nothing passes between this machine and VMs, and nobody is told; VMs still hear each other."""
        _ip("link", "set", self._port, "nomaster")

    def mend(self) -> None:
        _ip("link", "set", self._port, "master", self.bridge)

    def close(self) -> None:
        for name in (self._here, self.bridge):
            subprocess.run(["ip", "link", "delete", name], capture_output=True)


class Machines:
    """A host of VMs; `with` ends them all.

    Args:
        agent: The program `scavenger-vm` on every VM; none if empty.
        programs: More of them, by their paths.
        boot_s: From when a VM is up until it runs its user data: on real ones, some tens of seconds.
        stop_s: How long a VM's processes have to end when it does.

    Attributes:
        address: Of this machine on the VMs' net: where a leader is reached.
        programs: Of VMs that boot from now on, by their paths.
    """

    def __init__(
        self,
        agent: str = AGENT,
        *,
        programs: Mapping[str, str] | None = None,
        boot_s: float = 0.0,
        stop_s: float = 1.0,
    ) -> None:
        if reason := unavailable():
            raise RuntimeError(reason)
        sweep()
        self.mark = _mark(os.getpid())
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self.mark}-"))
        self._net = _Net(self.mark)
        self.address = self._net.address
        self.programs = {**({"/usr/local/bin/scavenger-vm": agent} if agent else {}), **(programs or {})}
        self._boot_s, self._stop_s = boot_s, stop_s
        self._threads: list[tuple[Machine, threading.Thread]] = []

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def boot(
        self,
        name: str,
        user_data: str,
        *,
        cores: float | None = None,
        metadata_port: int = 0,
        on_end: Callable[[Machine], None] = lambda machine: None,
    ) -> Machine:
        """Start a VM; returns at once.

        Args:
            name: Its host name, letters, digits and hyphens.
            user_data: A cloud-init archive.
            cores: Processors' time that it gets, 0.5 for half of one; None for all there is.
            metadata_port: Where its metadata service is on `address`; 0 for none.
            on_end: Called when it is over, on a thread of its own.
        """
        machine = Machine(name, self._net.next(), self._folder / name, on_end)
        told = {
            "name": name,
            "gateway": self.address,
            "user_data": user_data,
            "files": self.programs,
            "metadata": [self.address, metadata_port] if metadata_port else None,
            "boot_s": self._boot_s,
            "stop_s": self._stop_s,
        }
        thread = threading.Thread(target=machine.live, args=(self._net, told, cores), daemon=True)
        self._threads.append((machine, thread))
        thread.start()
        return machine

    def cut(self) -> None:
        """The network between this machine and all VMs fails: what is sent is lost."""
        self._net.cut()

    def mend(self) -> None:
        """It works again."""
        self._net.mend()

    def close(self) -> None:
        """End every VM at once and remove everything."""
        for machine, _ in self._threads:
            machine.kill()
        for machine, thread in self._threads:
            thread.join(_MADE_MAX_S)
            machine.kill()
        self._net.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def limit(name: str, pid: int, cores: float | None) -> list[Path]:
    """Give a process and its children a share of the processors; returns the groups made, none where there are none."""
    if cores is None:
        return []
    quota_us = max(1_000, int(cores * _PERIOD_US))
    group = (_CGROUPS / "cpu" if (_CGROUPS / "cpu").is_dir() else _CGROUPS) / name
    try:
        group.mkdir()
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            with contextlib.suppress(OSError):
                (_CGROUPS / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        return remove([group])
    return [group]


def remove(groups: list[Path]) -> list[Path]:
    """Remove groups whose processes have ended or are about to."""
    for group in groups:
        until = time.monotonic() + 5.0
        while group.exists() and time.monotonic() < until:
            with contextlib.suppress(OSError):
                for inner in group.glob("*/"):  # as of tenants that ended with their VM
                    inner.rmdir()
                group.rmdir()
                break
            time.sleep(0.01)
    return []


def left(mark: str = _PREFIX) -> list[str]:
    """What there is of VMs on this machine: interfaces, groups, folders, processes that bear the mark."""
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout)
    groups = [*_CGROUPS.glob(f"{mark}*"), *(_CGROUPS / "cpu").glob(f"{mark}*")]
    folders = list(Path(tempfile.gettempdir()).glob(f"{mark}-*"))
    inits = [
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(f"/{mark}-" in word for word in process.info["cmdline"] or ())
    ]
    return [
        *(each["ifname"] for each in links if each.get("ifalias", "").startswith(mark)),
        *map(str, groups),
        *map(str, folders),
        *(f"process {pid}" for pid in inits),
    ]


def sweep() -> None:
    """Remove what processes that are no more have left; their VMs end by themselves when nobody holds them."""
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout)
    for link in links:
        if link["ifname"].startswith(_PREFIX) and _is_stale(link.get("ifalias", "")):
            subprocess.run(["ip", "link", "delete", link["ifname"]], capture_output=True)
    for group in [*_CGROUPS.glob(f"{_PREFIX}-*"), *(_CGROUPS / "cpu").glob(f"{_PREFIX}-*")]:
        if _is_stale(group.name):
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            remove([group])
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-*"):
        if _is_stale(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _mark(pid: int) -> str:
    """Of a process, that no later one has: its number and when it began, in the kernel's ticks."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return f"{_PREFIX}-{pid}-{stat.rpartition(')')[2].split()[19]}"


def _is_stale(mark: str) -> bool:
    words = mark.split("-")
    if len(words) < 3 or not words[1].isdigit():
        return False
    try:
        return _mark(int(words[1])) != "-".join(words[:3])
    except (FileNotFoundError, ProcessLookupError):
        return True


def _ip(*argv: str) -> None:
    subprocess.run(["ip", *argv], check=True, capture_output=True)
