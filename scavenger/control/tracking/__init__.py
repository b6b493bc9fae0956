"""Tells MLflow, TensorBoard and Weights & Biases what a job does; see `Tracking`."""
