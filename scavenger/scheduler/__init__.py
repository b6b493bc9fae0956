"""Aggregation that many jobs share: which node holds which bucket, and when nodes are started and ended.

Pure decisions over values. `pool` has the values, `cycles` the formulas, `joint` and `packing` the assignment,
and `scaling` what follows from an event.
"""
