"""Provisioning: how many VMs a job wants (`slots`, `fleet_plan`), and the next actions to get them (`decider`).

All modules are pure. `actions` defines the decisions, `memory` what a process remembers between two decisions, `money`
computes the cost of VMs, and `silence` distinguishes failed VMs from a failed network.
"""
