"""A module that starts a thread where it is imported, so that nothing may be forked after it."""

from __future__ import annotations

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()


def main() -> int:
    return 0
