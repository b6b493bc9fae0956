"""Where workers come from: one module per provider, and the table that finds it by name."""
