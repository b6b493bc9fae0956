"""What a process gets from the one that started it, with which it also ends."""

from __future__ import annotations

import os
import signal
import threading
from typing import TypeVar

import msgspec

Configuration = TypeVar("Configuration", bound=msgspec.Struct)


def read_configuration(kind: type[Configuration]) -> Configuration:
    """Read the configuration from standard input, and end this process, or its group, when the parent process ends.

    The parent holds the pipe open as long as it lives, and writes nothing more to it. The kernel's own parent-death
    signal is no substitute: it is sent when the *thread* that started the process ends.
    """
    pipe = os.fdopen(os.dup(0), "rb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # the training code finds an empty standard input
    line = pipe.readline()

    def watch() -> None:
        pipe.read()  # to its end
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="scavenger-parent", daemon=True).start()
    return msgspec.json.decode(line, type=kind)
