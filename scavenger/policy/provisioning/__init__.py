"""Which VMs a job has: how many it wants (`slots`, `plan`), and what to do next so that they are there (`decider`).

All pure. `actions` are what is decided, `memory` is what one process remembers between two decisions, `money` is what
VMs cost, and `silence` tells VMs that have failed from a network of ours that has.
"""
