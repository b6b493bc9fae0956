"""Decisions during the run: a snapshot of the job in, one decision with its reason out. Nothing here acts.

`policy_for` makes the policy that a job file asks for.
"""

from scavenger.policy.base import Chain, Policy
from scavenger.policy.batch import batch_rule, learning_rate_scale
from scavenger.policy.table import policy_for

__all__ = ["Chain", "Policy", "batch_rule", "learning_rate_scale", "policy_for"]
