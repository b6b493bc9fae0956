"""What runs on a host: `python3 -` reads this text over SSH, answers one question in a line of JSON, and ends.

A host serves one VM at a time: a script that runs until it ends, is ended, or its time is over. A lease file is locked
by the process that keeps it and by the script and its agent, which inherit the descriptor. So the lease lasts as long
as one of them lives, whatever kills the others, and nobody can have the host meanwhile, of any installation or user.
What a VM was launched with is kept in a file by its token. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = "scavenger-host "
"""Begins the line of the answer; a login may write others."""
GRACE_S = 25.0
"""From the request to end to the kill: an agent that leaves its job takes up to 20 s."""
FORGET_S = 86_400.0
"""For how long an ended VM can be seen."""
_OURS = "SCAVENGER_LEASE"
_CONSOLE_BYTES = 128_000
_WOKEN = (signal.SIGTERM, signal.SIGCHLD)


class Host:
    """The host as one user sees it.

    Args:
        folder: Path to which `.lease` and `-UID` are added: the file that all users lock, and this user's folder.

    Raises:
        PermissionError: The folder is somebody else's.
    """

    def __init__(self, folder: str) -> None:
        folder = os.path.expanduser(folder)
        self._lease, self._folder = Path(f"{folder}.lease"), Path(f"{folder}-{os.getuid()}")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.is_symlink() or self._folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{self._folder} is not this user's")
        (self._folder / "vms").mkdir(exist_ok=True)

    def size(self) -> dict[str, Any]:
        """Processors, memory and GPUs, and the version of Python."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        cards = Path("/proc/driver/nvidia/gpus")
        return {
            "cpus": len(os.sched_getaffinity(0)),
            "memory": pages // 2**30,
            "gpus": len(list(cards.iterdir())) if cards.is_dir() else 0,
            "python": ".".join(map(str, sys.version_info[:3])),
        }

    def look(self) -> dict[str, Any]:
        """Whether the host is held, and this user's VMs with their states."""
        with self._door():
            held, vms = self._is_held(), [self._now(one) for one in self._vms()]
        return {"held": held, "vms": [one for one in vms if one is not None]}

    def launch(self, vm: dict[str, Any], script: str) -> dict[str, Any]:
        """Start a VM unless its token was used before; `vm` is null if the host is held."""
        with self._door():
            before = self._read(vm["token"])
            if before is not None:
                return {"vm": self._now(before) or {**before, "state": "gone"}}
            lease = self._open_lease()
            try:
                fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lease)
                return {"vm": None}
            made = {**vm, "launched_at": _now_s(), "ending": False, "ended_at": None, "reason": ""}
            keeper = os.fork()
            if not keeper:
                self._keep(made, script, lease)
            os.close(lease)
            self._write({**made, "keeper": keeper, "began": _began(keeper)})
            return {"vm": self._now(self._read(vm["token"]) or made)}

    def terminate(self, token: str) -> dict[str, Any]:
        """Ask a VM to end."""
        with self._door():
            vm = self._read(token)
            if vm is None or vm["ended_at"] is not None or not self._is_held():
                return {}
            self._write({**vm, "ending": True})
            if _began(vm["keeper"]) == vm["began"]:
                os.kill(vm["keeper"], signal.SIGTERM)
            else:
                _kill_all(token)
        return {}

    def console(self, token: str) -> dict[str, Any]:
        """The end of what a VM has written; null if there is no such VM."""
        if self._read(token) is None:
            return {"text": None}
        with contextlib.suppress(OSError), self._console(token).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _CONSOLE_BYTES))
            return {"text": file.read().decode(errors="replace")}
        return {"text": ""}

    def forget(self, owner: str) -> dict[str, Any]:
        """Remove what an owner's VMs have left, unless one of them lives."""
        with self._door():
            vms = [self._now(one) for one in self._vms() if one["owner"] == owner]
            gone = [one["token"] for one in vms if one is not None and one["state"] == "gone"]
            if len(gone) == len(vms):
                for token in gone:
                    self._remove(token)
                return {"removed": gone}
        return {"removed": []}

    # ---- files ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _door(self) -> Iterator[None]:
        """One question of this user at a time."""
        with (self._folder / "door").open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            yield

    def _open_lease(self) -> int:
        """The file that all users of the host lock; a user may lock a file that is another's to write."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                return os.open(self._lease, os.O_RDONLY | os.O_NOFOLLOW)
            with contextlib.suppress(FileExistsError):
                return os.open(self._lease, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def _is_held(self) -> bool:
        lease = self._open_lease()
        try:
            fcntl.flock(lease, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lease)
        return False

    def _file(self, token: str) -> Path:
        return self._folder / "vms" / f"{token}.json"

    def _console(self, token: str) -> Path:
        return self._folder / "vms" / f"{token}.console"

    def _read(self, token: str) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads(self._file(token).read_text())
            return found
        return None

    def _write(self, vm: dict[str, Any]) -> None:
        part = self._file(vm["token"]).with_suffix(".part")
        part.write_text(json.dumps(vm))
        part.replace(self._file(vm["token"]))

    def _vms(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self._folder / "vms").glob("*.json"))]

    def _now(self, vm: dict[str, Any]) -> dict[str, Any] | None:
        """A VM with its state; None once it is forgotten."""
        if vm["ended_at"] is None and not (self._is_held() and self._holds(vm)):
            vm = {**vm, "ended_at": _now_s(), "reason": "its processes were killed"}
            self._write(vm)
            shutil.rmtree(self._folder / "work" / vm["token"], ignore_errors=True)
        if vm["ended_at"] is None:
            return {**vm, "state": "stopping" if vm["ending"] else "running"}
        if _now_s() - vm["ended_at"] > FORGET_S:
            self._remove(vm["token"])
            return None
        return {**vm, "state": "gone"}

    def _holds(self, vm: dict[str, Any]) -> bool:
        """Whether it is this VM that holds the lease: its keeper lives, or another process of it."""
        return _began(vm["keeper"]) == vm["began"] or bool(_processes(vm["token"]))

    def _remove(self, token: str) -> None:
        for path in (self._file(token), self._console(token)):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._folder / "work" / token, ignore_errors=True)

    # ---- the process that keeps a VM --------------------------------------------------------------------------

    def _keep(self, vm: dict[str, Any], script: str, lease: int) -> None:
        """Run a script until it ends, is to end or its time is over; then end all that it began. Does not return."""
        token, reason = vm["token"], "its keeper failed"
        try:
            os.setsid()
            out = os.open(self._console(token), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            nothing = os.open(os.devnull, os.O_RDWR)
            for number, to in ((0, nothing), (1, out), (2, out)):
                os.dup2(to, number)
            os.closerange(3, lease)
            os.closerange(lease + 1, 256)
            reason = self._run(vm, script, lease)
        finally:
            with contextlib.suppress(BaseException):
                _kill_all(token)
                shutil.rmtree(self._folder / "work" / token, ignore_errors=True)
                with self._door():
                    made = self._read(token) or vm
                    self._write({**made, "ended_at": _now_s(), "reason": reason})
            os._exit(0)

    def _run(self, vm: dict[str, Any], script: str, lease: int) -> str:
        """Returns why it has ended."""
        work = self._folder / "work" / vm["token"]
        work.mkdir(mode=0o700, parents=True)
        (work / "boot.sh").write_text(script)
        venv = self._folder / "venv"
        own = {
            _OURS: vm["token"],
            "TMPDIR": str(work),
            "SCAVENGER_NODE": vm["host"],
            "SCAVENGER_VENV": str(venv),
            "PATH": f"{venv}/bin:{os.environ.get('PATH', os.defpath)}",
        }
        signal.pthread_sigmask(signal.SIG_BLOCK, _WOKEN)
        process = subprocess.Popen(
            ["/bin/sh", "boot.sh"],
            cwd=work,
            env={**os.environ, **own},
            pass_fds=(lease,),
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _WOKEN),
        )
        until, reason = time.monotonic() + vm["run_max_s"], ""
        while process.poll() is None:
            left_s = until - time.monotonic()
            woken = signal.sigtimedwait(_WOKEN, min(left_s, 3600.0)) if left_s > 0.0 else None
            if woken is None and time.monotonic() >= until:
                if reason:
                    return reason
                reason, until = "its time limit", time.monotonic() + GRACE_S
                process.terminate()
            elif woken is not None and woken.si_signo == signal.SIGTERM and not reason:
                reason, until = "asked to end", time.monotonic() + GRACE_S
                process.terminate()
        return reason or f"its script ended with status {process.returncode}"


def _now_s() -> float:
    """The time of day, seconds since 1970."""
    return time.clock_gettime(time.CLOCK_REALTIME)


def _began(pid: int) -> str:
    """When a process began, in ticks of the kernel since which boot; empty if it does not live."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else f"{fields[18]} {boot}"


def _processes(token: str) -> list[int]:
    """The processes that a VM's script began, by their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{_OURS}={token}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _kill_all(token: str) -> None:
    until = time.monotonic() + GRACE_S
    while (pids := _processes(token)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def answer(question: dict[str, Any]) -> None:
    """Answer a question: the name of a method of `Host`, the folder, and what the method takes."""
    try:
        found = getattr(Host(question["folder"]), question["ask"])(**question["given"])
    except (OSError, ValueError) as error:
        found = {"error": str(error)}
    print(MARK + json.dumps(found), flush=True)
