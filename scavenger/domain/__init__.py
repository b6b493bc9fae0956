"""Values that every layer shares. They hold data, decide nothing, and import only Scavenger's errors."""
