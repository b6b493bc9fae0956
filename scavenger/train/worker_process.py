"""What the fork server runs: importing this module imports all that a worker needs, above all TensorFlow."""

from __future__ import annotations

from scavenger.train import process
from scavenger.train.worker import worker

__all__ = ["main", "worker"]

main = process.main
