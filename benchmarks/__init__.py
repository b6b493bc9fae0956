"""Measurements of Scavenger itself: `python -m benchmarks [NAME...]`; see README.md."""
