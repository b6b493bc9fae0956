"""Ends a process when the one that started it has ended."""

from __future__ import annotations

import os
import signal
import threading
from typing import BinaryIO


def end_with_parent(pipe: BinaryIO) -> None:
    """End this process, and its group if it leads one, when the other end of a pipe is closed.

    Args:
        pipe: The parent holds its other end open as long as it lives, and writes nothing more to it.
    """

    def watch() -> None:
        pipe.read()  # to its end
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="scavenger-parent", daemon=True).start()
