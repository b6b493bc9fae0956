"""The engine for the nodes of a Ray cluster."""
