"""A machine behind a router, as a laptop is: it reaches VMs, and they do not reach it.

`python caller_net.py SOCKET NETWORK PORT...` is its side, in a network namespace with nothing but a loopback interface,
to which all addresses of the VMs' net lead: what connects there is passed, with the address that it wanted, through a
Unix socket to `CallerNet`, which connects outside, as a router does. There is no way in.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _join(near: socket.socket, far: socket.socket) -> None:
    for pair in ((near, far), (far, near)):
        threading.Thread(target=_pump, args=pair, daemon=True).start()


class CallerNet:
    """The router.

    Args:
        address: Of this machine on the VMs' net.
        ports: Of servers on that net that the caller may reach.
        folder: For the socket.
    """

    def __init__(self, address: str, ports: tuple[int, ...], folder: Path) -> None:
        self._socket = folder / "router"
        self._open: list[socket.socket] = []
        self._up = True
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._socket))
        self._listener.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()
        network = f"{address.rpartition('.')[0]}.0/24"
        self._inside = subprocess.Popen(
            [
                "unshare",
                "--net",
                sys.executable,
                "-IS",
                __file__,
                str(self._socket),
                network,
                *map(str, ports),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._inside.stdout is not None
        assert self._inside.stdout.readline() == "ready\n"

    def command(self, *argv: str) -> list[str]:
        """The command line of a program on the machine."""
        return ["nsenter", "--target", str(self._inside.pid), "--net", "--", *argv]

    def interfaces(self) -> list[str]:
        """Names of the machine's network interfaces."""
        told = subprocess.run(self.command("ip", "-j", "link"), capture_output=True, check=True).stdout
        return [str(one["ifname"]) for one in json.loads(told)]

    def cut(self) -> None:
        """The network fails: open connections break, and no new ones are made."""
        with self._lock:
            self._up = False
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._open = []

    def mend(self) -> None:
        """It works again."""
        with self._lock:
            self._up = True

    def close(self) -> None:
        """The machine is switched off."""
        self.cut()
        self._inside.kill()
        self._inside.wait()
        self._listener.close()
        shutil.rmtree(self._socket, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._route, args=[near], daemon=True).start()

    def _route(self, near: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\n"):
            byte = near.recv(1)
            if not byte:
                return
            head += byte
        address, port = head.decode().split()
        with self._lock:
            up = self._up
        if not up:
            near.close()
            return
        try:
            far = socket.create_connection((address, int(port)), 10)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._lock:
            self._open += [near, far]
        _join(near, far)


def _inside(path: str, network: str, ports: list[int]) -> None:
    for words in (
        ["link", "set", "lo", "up"],
        ["address", "add", network.replace(".0/", ".254/"), "dev", "lo"],
    ):
        subprocess.run(["ip", *words], check=True)
    listeners = [socket.create_server(("0.0.0.0", port)) for port in ports]

    def accept(listener: socket.socket) -> None:
        while True:
            near, _ = listener.accept()
            address, port = near.getsockname()
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(path)
                far.sendall(f"{address} {port}\n".encode())
            except OSError:
                near.close()
                continue
            _join(near, far)

    for listener in listeners:
        threading.Thread(target=accept, args=[listener], daemon=True).start()
    print("ready", flush=True)
    while os.getppid() != 1:
        threading.Event().wait(1.0)


if __name__ == "__main__":
    _inside(sys.argv[1], sys.argv[2], [int(port) for port in sys.argv[3:]])
