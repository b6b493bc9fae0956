"""The supervisor of a job: starts, watches, replaces and ends its processes, and routes their messages."""
