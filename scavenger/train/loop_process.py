"""What the fork server of a loop job runs: importing this module imports all that a worker of a loop needs."""

from __future__ import annotations

from scavenger.train import process
from scavenger.train.custom_loop import worker

__all__ = ["main", "worker"]

main = process.main
"""What a forked process runs."""
