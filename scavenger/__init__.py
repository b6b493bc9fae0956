"""Scavenger decides what a training job should run on, and then runs it there.

The layers, from values to the world, are drawn in docs/architecture.md. Importing this package costs nothing:
TensorFlow, SQLAlchemy and the cloud clients are imported where they are used.
"""

__version__ = "0.1.0"
