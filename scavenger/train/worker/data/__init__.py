"""Sources of samples: every form of data that a job may have, read by the indices of its samples."""

from scavenger.train.worker.data.opening import open_source
from scavenger.train.worker.data.source import Source, within_reach

__all__ = ["Source", "open_source", "within_reach"]
