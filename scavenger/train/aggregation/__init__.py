"""The aggregators: average gradients, apply the optimizer, and sequence the steps."""
