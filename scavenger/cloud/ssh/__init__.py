"""Machines that one has, over SSH."""
