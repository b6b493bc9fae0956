"""Training loops that the user writes: supervisor, worker, messages, snapshots."""
