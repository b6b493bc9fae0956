"""A running training: the controller, its history, policies, operations, limits and records."""
