"""Jobs from Python: for pipelines, notebooks and searches over hyperparameters; `scavenger` names what is public."""
