"""What runners are forked from: importing this module imports all that the runner of a job on this machine needs."""

from __future__ import annotations

from sqlalchemy.dialects import sqlite

from scavenger.control.service import runner
from scavenger.train.custom_loop import job_supervisor as loop_supervisor
from scavenger.train.supervisor import supervisor

__all__ = ["loop_supervisor", "main", "sqlite", "supervisor"]

main = runner.main
"""What a forked process runs."""
