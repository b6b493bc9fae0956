"""When the program of a leader's VM renews the VM's time limit, and when it does not, so that the VM ends."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_for

pytest.importorskip("fastapi")

from scavenger.control.service.server import Server, run
from scavenger.server.on_leader import kept_alive
from scavenger.store import Store

EVERY_S, SERVED_S = 0.05, 1.5


@pytest.fixture
def renewals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the VM's time limit was renewed so far, by the `systemctl` that there is."""
    log = tmp_path / "renewals"
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    systemctl.chmod(0o700)
    monkeypatch.setenv("PATH", f"{systemctl.parent}:/usr/bin:/bin")
    return lambda: len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "disk", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Serving:
    """A server of the folder's store, in a thread."""

    def __init__(self, folder: Path) -> None:
        self._store = Store.open(f"sqlite:///{folder / 'scavenger.db'}")
        self.server = Server(self._store, idle_s=3600.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=run, args=(self.server, self._stop))

    def __enter__(self) -> Server:
        self._thread.start()
        return self.server

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._store.close()


def stops(renewals: Callable[[], int]) -> bool:
    before = renewals()
    time.sleep(4 * EVERY_S)
    return renewals() == before


@pytest.mark.root
def test_a_full_disk_ends_the_renewals_and_room_on_it_brings_them_back(
    small_disk: Path, renewals: Callable[[], int]
) -> None:
    with Serving(small_disk) as server, kept_alive(server, every_s=EVERY_S, served_s=SERVED_S):
        wait_for(renewals)
        with (
            open(small_disk / "filler", "wb", buffering=0) as filler,
            pytest.raises(OSError, match="No space"),
        ):
            filler.writelines(itertools.repeat(bytes(4096)))
        wait_for(lambda: time.monotonic() - server.served_at > SERVED_S)
        wait_for(lambda: stops(renewals))

        (small_disk / "filler").unlink()

        before = renewals()
        wait_for(lambda: renewals() > before)


def test_a_store_that_is_gone_ends_the_renewals(tmp_path: Path, renewals: Callable[[], int]) -> None:
    with Serving(tmp_path) as server, kept_alive(server, every_s=EVERY_S, served_s=SERVED_S):
        wait_for(renewals)

        for path in tmp_path.glob("scavenger.db*"):
            path.unlink()

        wait_for(lambda: stops(renewals))


def test_a_server_that_has_not_served_yet_is_not_renewed(tmp_path: Path, renewals: Callable[[], int]) -> None:
    with (
        Store.open(f"sqlite:///{tmp_path / 'scavenger.db'}") as store,
        kept_alive(Server(store, idle_s=1.0), every_s=EVERY_S),
    ):
        time.sleep(10 * EVERY_S)
    assert renewals() == 0
