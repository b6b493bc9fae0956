"""What a training module imports: nothing here pulls in TensorFlow or a database."""

from scavenger.sdk.job import KerasJob

__all__ = ["KerasJob"]
