"""Policies: given a snapshot of the running job, each returns a decision with its reason. Nothing here acts.

`policy_for` builds the policy that a job file specifies.
"""

from scavenger.policy.base import Chain, Policy
from scavenger.policy.batch import batch_rule, learning_rate_scale
from scavenger.policy.table import policy_for

__all__ = ["Chain", "Policy", "batch_rule", "learning_rate_scale", "policy_for"]
