"""The first process of a VM of `machines.py`: gives it disk, network and services, and runs its user data.

`python machine_init.py FOLDER`, in namespaces of its own. Says `ready`, reads one line of JSON that tells what the VM
is, says `up`; a later line asks for its end, as does the end of its standard input, so that no VM outlives who made it.
Stands in for what real images have of cloud-init and systemd, as far as Scavenger's user data goes; whatever goes
further is refused loudly. When this process ends, the kernel ends every other of the VM.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path
from typing import Any, NoReturn

UNITS = Path("/run/systemd/system")
SOCKET = "/run/machine.sock"
METADATA = "169.254.169.254"
KNOWN = {
    "Unit": {"Description", "DefaultDependencies", "SuccessAction", "FailureAction", "After"},
    "Service": {
        *("Type", "ExecStart", "Environment", "StandardOutput", "StandardError", "OOMPolicy"),
        *("TimeoutStopSec", "RemainAfterExit", "ExecStop"),
    },
    "Timer": {"OnActiveSec", "AccuracySec", "Unit"},
}
SYSTEMCTL = f"""#!{sys.executable} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({SOCKET!r})
    line.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    code, words = json.loads(line.makefile().readline())
print(words, end="", file=sys.stderr)
sys.exit(code)
"""


class Processes:
    """Children, and orphans of the VM; whoever ends is reaped by one thread, which tells who started it."""

    def __init__(self) -> None:
        self._ended: dict[int, Callable[[int], None]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._reap, daemon=True).start()

    def start(self, argv: list[str], ended: Callable[[int], None], **environment: str) -> int:
        with self._lock:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                stderr=sys.stderr,
                start_new_session=True,
                env={**os.environ, **environment},
                cwd="/",
            )
            self._ended[process.pid] = ended
            return process.pid

    def run(self, argv: list[str]) -> int:
        """To its end; returns its exit status."""
        told: queue.Queue[int] = queue.Queue()
        self.start(argv, told.put)
        return told.get()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                time.sleep(0.02)
                continue
            with self._lock:
                ended = self._ended.pop(pid, None)
            if ended is not None:
                ended(os.waitstatus_to_exitcode(status))


class Services:
    """What `systemctl` does, for the units of user data."""

    def __init__(self, processes: Processes, power_off: Callable[[], None]) -> None:
        self._processes, self._power_off = processes, power_off
        self._units: dict[str, ConfigParser] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._running: dict[str, int] = {}
        self._last: list[list[str]] = []
        self._lock = threading.RLock()

    def serve(self) -> None:
        """Answer `systemctl` for ever."""
        line = socket.socket(socket.AF_UNIX)
        line.bind(SOCKET)
        line.listen(16)
        while True:
            connection, _ = line.accept()
            with connection, connection.makefile() as asked:
                try:
                    code, words = self.do(json.loads(asked.readline())), ""
                except (ValueError, KeyError, OSError) as error:
                    code, words = 1, f"systemctl of the tests: {error}\n"
                    print(words, file=sys.stderr, end="", flush=True)
                connection.sendall(json.dumps((code, words)).encode() + b"\n")

    def do(self, arguments: list[str]) -> int:
        verb, *rest = arguments
        names = [each for each in rest if each not in ("--no-block", "--quiet")]
        with self._lock:
            if verb == "poweroff" and not rest:
                self._power_off()
            elif verb == "daemon-reload" and not rest:
                self._units = {path.name: _read(path) for path in UNITS.iterdir()}
            elif verb in ("start", "restart"):
                for name in names:
                    self._start(name, again=verb == "restart")
            elif verb == "is-active":
                return 0 if all(name in self._timers or name in self._running for name in names) else 3
            else:
                raise ValueError(f"not known here: {arguments}")
        return 0

    def _start(self, name: str, *, again: bool) -> None:
        unit = self._units[name]
        if name.endswith(".timer"):
            if name in self._timers:
                if not again:
                    return
                self._timers.pop(name).cancel()
            target = unit.get("Timer", "Unit", fallback=name.removesuffix(".timer") + ".service")
            timer = threading.Timer(float(unit["Timer"]["OnActiveSec"]), self.do, [["start", target]])
            timer.daemon = True
            self._timers[name] = timer
            timer.start()
        elif "ExecStop" in unit["Service"] and name not in self._running:
            assert unit["Service"]["RemainAfterExit"] == "yes"
            self._running[name] = 0
            self._last.append(unit["Service"]["ExecStop"].split())
        elif name not in self._running:
            variables = unit.get("Service", "Environment", fallback="").split()
            self._running[name] = self._processes.start(
                unit["Service"]["ExecStart"].split(),
                lambda code: self._ended(name, code),
                **dict(each.split("=", 1) for each in variables),
            )

    def stop(self) -> None:
        """What units have asked for at the end of the VM."""
        for argv in self._last:
            self._processes.run(argv)

    def _ended(self, name: str, code: int) -> None:
        with self._lock:
            del self._running[name]
            action = self._units[name].get(
                "Unit", "FailureAction" if code else "SuccessAction", fallback="none"
            )
        if action == "poweroff":
            self._power_off()


def _read(path: Path) -> ConfigParser:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text())
    for section in unit.sections():
        if unknown := set(unit[section]) - KNOWN.get(section, set()):
            raise ValueError(f"{path.name}: not known here: {sorted(unknown)}")
    return unit


def own_disk(folder: Path) -> None:
    """A root of its own: what the machine of the tests has, on which nothing that is written stays."""
    elsewhere = ("/proc", "/sys", "/dev", "/run", str(folder))
    lines = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    others = [
        point
        for point in lines
        if point != "/" and not f"{point}/".startswith(tuple(f"{e}/" for e in elsewhere))
    ]
    _do("mount", "-t", "tmpfs", "-o", "mode=755", "disk", str(folder))
    root = folder / "root"
    for each in (folder / "upper", folder / "work", root):
        each.mkdir()
    options = f"lowerdir=/,upperdir={folder}/upper,workdir={folder}/work"
    _do("mount", "-t", "overlay", "-o", options, "disk", str(root))
    for point in others:
        if os.path.exists(f"{root}{point}"):
            _do("mount", "--bind", point, f"{root}{point}")
    _do("mount", "--rbind", "/dev", f"{root}/dev")
    _do("mount", "--rbind", "/sys", f"{root}/sys")
    _do("mount", "-t", "tmpfs", "-o", "mode=1777", "shm", f"{root}/dev/shm")
    _do("mount", "-t", "tmpfs", "-o", "mode=755", "run", f"{root}/run")
    _do("mount", "-t", "proc", "proc", f"{root}/proc")
    os.chroot(root)
    os.chdir("/")


def own_network(address: str, gateway: str) -> None:
    """Its interface, and the address of the metadata service."""
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "address", "add", f"{METADATA}/32", "dev", "lo")
    _do("ip", "address", "add", f"{address}/24", "dev", "eth0")
    _do("ip", "link", "set", "eth0", "up")
    _do("ip", "route", "add", "default", "via", gateway)


def relay(to: tuple[str, int]) -> None:
    """The metadata service of this VM, which the cloud has outside."""
    listener = socket.create_server((METADATA, 80))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            sink.close()

    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(to, 5)
            far.settimeout(None)
        except OSError:
            near.close()
            continue
        for pair in ((near, far), (far, near)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


def boot(user_data: str, processes: Processes, after_s: float) -> None:
    """As cloud-init does with an archive: boothooks as early as can be, scripts when all else is up."""
    time.sleep(after_s)
    parts = [part for part in message_from_string(user_data).walk() if not part.is_multipart()]
    for kind, folder in (("text/cloud-boothook", "boothooks"), ("text/x-shellscript", "scripts")):
        for number, part in enumerate(parts):
            if part.get_content_type() == kind:
                path = Path("/var/lib/cloud/instance", folder, f"part-{number + 1:03}")
                path.parent.mkdir(parents=True, exist_ok=True)
                content = part.get_payload(decode=True)
                assert isinstance(content, bytes)
                path.write_bytes(content)
                path.chmod(0o700)
                if code := processes.run([str(path)]):
                    print(f"cloud-init of the tests: {path} ended with {code}", file=sys.stderr, flush=True)


def write(files: dict[str, str]) -> None:
    for name, content in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(content)
        path.chmod(0o755)


def _do(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=sys.stderr)


def _say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def _end(stop_s: float) -> NoReturn:
    """Ask all processes to end, and then leave, which ends what is left."""
    os.kill(-1, signal.SIGTERM)
    until = time.monotonic() + stop_s
    while time.monotonic() < until and any(
        path.name.isdigit() and path.name != "1" for path in Path("/proc").iterdir()
    ):
        time.sleep(0.02)
    os._exit(0)


def main(folder: Path) -> None:
    """See the module."""
    _say(event="ready")
    machine = json.loads(sys.stdin.readline())
    os.environ.clear()
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    own_disk(folder)
    own_network(machine["address"], machine["gateway"])
    socket.sethostname(machine["name"])
    UNITS.mkdir(parents=True)
    write({"/usr/bin/systemctl": SYSTEMCTL, **machine["files"]})
    ends: queue.Queue[str] = queue.Queue()
    processes = Processes()
    services = Services(processes, lambda: ends.put("poweroff"))
    threading.Thread(target=services.serve, daemon=True).start()
    if machine["metadata"]:
        threading.Thread(target=relay, args=[tuple(machine["metadata"])], daemon=True).start()

    def listen() -> None:
        sys.stdin.readline()  # a line asks for the end, as does there being no more of them
        ends.put("stopped")

    threading.Thread(target=listen, daemon=True).start()
    _say(event="up")
    threading.Thread(
        target=boot, args=[machine["user_data"], processes, machine["boot_s"]], daemon=True
    ).start()
    event = ends.get()
    services.stop()
    _say(event=event)
    _end(machine["stop_s"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
