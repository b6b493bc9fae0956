"""Values that every layer shares: they hold facts, decide nothing, and import nothing of Scavenger but its errors."""
