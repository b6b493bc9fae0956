"""Searches over hyperparameters of other projects, on their own interfaces; each needs the extra of its name."""
