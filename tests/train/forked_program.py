"""What the fork server runs in the engines' tests: the program that a variable holds."""

from __future__ import annotations

import os
import resource

if few := os.environ.get("FORKED_DESCRIPTORS"):  # imported by the server, whose processes have its limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(few), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def main() -> int:
    exec(os.environ["FORKED_PROGRAM"], {"__name__": "__main__"})
    return 0
