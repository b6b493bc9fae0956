"""Checkpoints: their format, their folders, and which one can be trusted."""
