"""Pools of nodes that many jobs share: traces of their jobs."""
