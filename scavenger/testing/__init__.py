"""Tests that packages outside can run on what they add to Scavenger; they need pytest."""
