"""The search: what is profiled and measured, what is selected, and the library of learned models."""
