"""Sources of samples: every form of data that a job may have, read by the indices of its samples."""

from scavenger.train.worker.data.items import ArraySource
from scavenger.train.worker.data.opening import open_source
from scavenger.train.worker.data.source import Parts, SampleSource, blocks_of_large, within_reach

__all__ = ["ArraySource", "Parts", "SampleSource", "blocks_of_large", "open_source", "within_reach"]
