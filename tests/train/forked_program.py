"""What the fork server runs in the engines' tests: the program that a variable holds."""

from __future__ import annotations

import os


def main() -> int:
    exec(os.environ["FORKED_PROGRAM"], {"__name__": "__main__"})
    return 0
