"""Policies: given a snapshot of the running job, each returns a decision with its reason. Nothing here acts.

`policy_for` of `table` builds the policy that a job file specifies.
"""
