"""The coordinator of a job: who is in, what the next view is, and how training begins."""
