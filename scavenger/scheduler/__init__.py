"""Aggregation that many jobs share: which node holds which bucket, and when nodes are started and ended.

Pure decisions over values. `pool` has the values, `cycles` the formulas, `joint` and `packing` the assignment,
`scaling` what follows from an event, `clusters` the same for many nodes, and `shares` who pays.
"""
