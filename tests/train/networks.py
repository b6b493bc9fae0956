"""Networks for tests: namespaces of this machine, each a host of its own, on a bridge that can be cut."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NETWORK = f"10.213.{os.getpid() % 254}."  # tests of other processes make networks too
LEADER = f"{NETWORK}1"


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class Bridge:
    """This machine at one end, and at the other a namespace.

    Attributes:
        within: What a command begins with that is to run at the other end.
    """

    def __init__(self, tag: str) -> None:
        self._tag, self._port = tag, f"{tag}v"
        self.within = ("ip", "netns", "exec", tag)

    def cut(self) -> None:
        """From now on nothing gets through, and nobody is told."""
        run("ip", "link", "set", self._port, "nomaster")

    def mend(self) -> None:
        run("ip", "link", "set", self._port, "master", self._tag, "up")


@contextmanager
def bridge() -> Iterator[Bridge]:
    """Skips the test where networks cannot be made."""
    tag = f"scav{os.getpid() % 100_000}"
    try:
        run("ip", "link", "add", tag, "type", "bridge")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"may not make networks here: {error}")
    try:
        run("ip", "addr", "add", f"{LEADER}/24", "dev", tag)
        run("ip", "link", "set", tag, "up")
        run("ip", "netns", "add", tag)
        run("ip", "link", "add", f"{tag}v", "type", "veth", "peer", "name", "eth0", "netns", tag)
        run("ip", "link", "set", f"{tag}v", "master", tag, "up")
        run("ip", "-n", tag, "addr", "add", f"{NETWORK}2/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", tag, "link", "set", device, "up")
        yield Bridge(tag)
    finally:
        subprocess.run(["ip", "netns", "del", tag], check=False, capture_output=True)
        run("ip", "link", "del", tag)
